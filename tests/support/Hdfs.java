import java.io.File;

import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/** A NameNode and a DataNode in one process: `Hdfs <directory of the names>`. */
public class Hdfs {
    public static void main(String[] arguments) throws Exception {
        DefaultMetricsSystem.setMiniClusterMode(true);
        HdfsConfiguration settings = new HdfsConfiguration();
        if (!new File(arguments[0]).exists()) {
            NameNode.format(settings);
        }
        NameNode names = NameNode.createNameNode(new String[0], settings);
        DataNode.createDataNode(new String[0], settings);
        while (names.getNamesystem().getNumLiveDataNodes() == 0 || names.isInSafeMode()) {
            Thread.sleep(50);
        }
        System.out.println("HDFS is ready");
        Thread.currentThread().join();
    }
}
