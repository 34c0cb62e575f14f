import java.lang.reflect.Field;
import java.util.Arrays;
import org.eclipse.jetty.server.Connector;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.dynamodb.services.local.main.CommandLineInput;
import software.amazon.dynamodb.services.local.main.ServerRunner;
import software.amazon.dynamodb.services.local.server.DynamoDBProxyServer;

/** DynamoDB Local, as its own main class starts it, but on one interface: `DynamoDB <host> <its own arguments>`. */
public class DynamoDB {
    public static void main(String[] arguments) throws Exception {
        String[] own = (String[]) Arrays.copyOfRange(arguments, 1, arguments.length);
        CommandLineInput line = new CommandLineInput(own);
        if (!line.init()) { // it has said what is wrong
            System.exit(1);
        }
        DynamoDBProxyServer proxy = ServerRunner.createServer(line);
        // It has no setting for this, and would let everyone in the network in.
        Field field = DynamoDBProxyServer.class.getDeclaredField("server");
        field.setAccessible(true);
        Connector[] connectors = ((Server) field.get(proxy)).getConnectors();
        for (int i = 0; i < connectors.length; i++) {
            ((ServerConnector) connectors[i]).setHost(arguments[0]);
        }
        proxy.start();
        proxy.join();
    }
}
