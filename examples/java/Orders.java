// Enqueue, stream and acknowledge with MariaDB Connector/J:
// java -cp mariadb-java-client.jar Orders.java HOST PORT USER PASSWORD DATABASE

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

public class Orders {
    public static void main(String[] args) throws SQLException {
        // With useServerPrepStmts the server prepares a PreparedStatement; without it the driver
        // writes text. socketTimeout is 0 by default, and must stay 0: an idle stream is silent.
        // With caching_sha2_password, a client without TLS must allow the server to send its RSA
        // key.
        String url = "jdbc:mariadb://" + args[0] + ":" + args[1] + "/" + args[4]
                + "?useServerPrepStmts=true&allowPublicKeyRetrieval=true";

        // A stream keeps its connection busy, so everything else uses another one.
        try (Connection streaming = DriverManager.getConnection(url, args[2], args[3]);
                Connection working = DriverManager.getConnection(url, args[2], args[3])) {
            working.setAutoCommit(false);
            enqueue(working, "tea", "bread");
            working.commit();
            System.out.println("enqueued tea, bread");

            enqueue(working, "milk");
            working.rollback();
            System.out.println("rolled back milk");

            long first = stream(streaming, working);
            acknowledgeAsText(working, first, "again");
            working.commit();

            try (Statement statement = working.createStatement()) {
                statement.executeQuery("STREAM * FROM customers");
            } catch (SQLException error) {
                System.out.println("refused " + error.getErrorCode() + ": " + error.getMessage());
            }

            enqueue(working, "salt");
            working.commit();
            System.out.println("enqueued salt");
            poll(working);
        }
    }

    static void enqueue(Connection connection, String... items) throws SQLException {
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO orders (item) VALUES (?)")) {
            for (String item : items) {
                insert.setString(1, item);
                insert.addBatch();
            }
            insert.executeBatch();
        }
    }

    static void acknowledgeAsText(Connection connection, long order, String how) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            int count = statement.executeUpdate("ACK FROM orders WHERE id = " + order);
            System.out.println("acknowledged " + order + ", " + how + ": " + count);
        }
    }

    static void acknowledgePrepared(Connection connection, long order, String how) throws SQLException {
        try (PreparedStatement ack = connection.prepareStatement("ACK FROM orders WHERE id = ?")) {
            ack.setLong(1, order);
            System.out.println("acknowledged " + order + ", " + how + ": " + ack.executeUpdate());
        }
    }

    // Returns the id of the first message.
    static long stream(Connection streaming, Connection working) throws SQLException {
        long first = 0;
        try (Statement statement = streaming.createStatement()) {
            // Rows are returned as they come; the default of 0 waits for the end of the result.
            // Closing the result reads the rest of it, so LIMIT gives it an end.
            statement.setFetchSize(1);
            ResultSet orders = statement.executeQuery("STREAM id, item FROM orders LIMIT 3");
            while (orders.next()) {
                long order = orders.getLong("id");
                String item = orders.getString("item");
                System.out.println("received " + order + " " + item);
                if (item.equals("bread")) {
                    acknowledgePrepared(working, order, "prepared");
                    enqueue(working, "jam"); // reaches the open stream as soon as it is committed
                    working.commit();
                    System.out.println("enqueued jam");
                } else {
                    acknowledgeAsText(working, order, "text");
                    working.commit();
                }
                first = first == 0 ? order : first;
            }
        }
        return first;
    }

    // A long poll is an ordinary result. The work and its acknowledgement are one transaction.
    // Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows
    // why.
    static void poll(Connection working) throws SQLException {
        String text = "STREAM id, item FROM orders LIMIT ? WAIT ?";
        try (PreparedStatement poll = working.prepareStatement(text)) {
            poll.setInt(1, 1);
            poll.setInt(2, 20);
            try (ResultSet orders = poll.executeQuery()) {
                while (orders.next()) {
                    System.out.println("received " + orders.getLong("id") + " " + orders.getString("item"));
                    acknowledgePrepared(working, orders.getLong("id"), "in the transaction");
                }
            }
            working.commit();

            poll.setDouble(2, 0.5);
            try (ResultSet none = poll.executeQuery()) {
                if (!none.next()) {
                    System.out.println("nothing came");
                }
            }
        }
    }
}
