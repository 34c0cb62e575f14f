import java.util.Iterator;
import java.util.List;
import java.util.Map;

import de.bwaldvogel.mongo.MongoCollection;
import de.bwaldvogel.mongo.MongoDatabase;
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.backend.CollectionOptions;
import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.KeyValue;
import de.bwaldvogel.mongo.backend.QueryResult;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.backend.h2.H2Database;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import de.bwaldvogel.mongo.wire.message.MongoQuery;
import org.h2.mvstore.MVMap;
import org.h2.mvstore.type.ObjectDataType;

/** The server's main class: `Mongo <file> <host> <port>`. */
public class Mongo {
    /**
     * Keys by what is in them. The store would compare keys that are documents by their serialized form, which says
     * how much room a map has: a key read back from the file would not be found by the one that was put there.
     */
    static class Keys extends ObjectDataType {
        public int compare(Object one, Object other) {
            if (one instanceof Document && other instanceof Document) {
                return compareAll(((Document) one).entrySet().iterator(), ((Document) other).entrySet().iterator());
            }
            if (one instanceof KeyValue && other instanceof KeyValue) {
                return compareAll(((KeyValue) one).iterator(), ((KeyValue) other).iterator());
            }
            if (one instanceof List && other instanceof List) {
                return compareAll(((List) one).iterator(), ((List) other).iterator());
            }
            if (one instanceof Map.Entry && other instanceof Map.Entry) {
                int names = compare(((Map.Entry) one).getKey(), ((Map.Entry) other).getKey());
                return names != 0 ? names : compare(((Map.Entry) one).getValue(), ((Map.Entry) other).getValue());
            }
            return super.compare(one, other);
        }

        private int compareAll(Iterator one, Iterator other) {
            while (one.hasNext() && other.hasNext()) {
                int found = compare(one.next(), other.next());
                if (found != 0) {
                    return found;
                }
            }
            return one.hasNext() ? 1 : other.hasNext() ? -1 : 0;
        }
    }

    /** Keeps what it acknowledges: the store alone would write it to the file up to a second later. */
    static class Durable extends H2Backend {
        Durable(String file) {
            super(file);
        }

        /** Opens each map before the database does, which then gets the one that is open. */
        protected MongoDatabase openOrCreateDatabase(final String name) {
            return new H2Database(name, getMvStore(), getCursorRegistry()) {
                protected MongoCollection openOrCreateCollection(String collection, CollectionOptions options) {
                    open("databases." + name + "." + collection);
                    return super.openOrCreateCollection(collection, options);
                }

                protected Index openOrCreateUniqueIndex(String collection, String index, List keys, boolean sparse) {
                    open(name + "." + collection + "._index_" + index);
                    return super.openOrCreateUniqueIndex(collection, index, keys, sparse);
                }
            };
        }

        private void open(String map) {
            getMvStore().openMap(map, new MVMap.Builder().keyType(new Keys()));
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
