import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.backend.QueryResult;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import de.bwaldvogel.mongo.wire.message.MongoQuery;

/** The server's main class: `Mongo <file> <host> <port>`. */
public class Mongo {
    /** Keeps what it acknowledges: the store alone would write it to the file up to a second later. */
    static class Durable extends H2Backend {
        Durable(String file) {
            super(file);
        }

        public Document handleMessage(MongoMessage message) {
            try {
                return super.handleMessage(message);
            } finally {
                save();
            }
        }

        public QueryResult handleQuery(MongoQuery query) {
            try {
                return super.handleQuery(query);
            } finally {
                save();
            }
        }

        private void save() {
            if (getMvStore().hasUnsavedChanges()) {
                getMvStore().commit();
            }
        }
    }

    public static void main(String[] arguments) {
        final MongoServer server = new MongoServer(new Durable(arguments[0]));
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                server.shutdownNow();
            }
        });
        server.bind(arguments[1], Integer.parseInt(arguments[2]));
    }
}
