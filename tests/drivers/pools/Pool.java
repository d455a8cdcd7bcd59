// HikariCP: it closes connections that were idle for ten seconds, its least; with `evict` also those that are not
// checked out, or when they are returned, as it does when they have passed their maxLifetime (half a minute at least).
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Timer;
import java.util.TimerTask;

public class Pool {
    static final String NEXT = "STREAM id FROM jobs LIMIT 1 WAIT 10";

    static long number(Connection from, String statement) throws SQLException {
        try (ResultSet found = from.createStatement().executeQuery(statement)) {
            found.next();
            return found.getLong(1);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("com.zaxxer.hikari.housekeeping.periodMs", "500");
        HikariConfig options = new HikariConfig();
        options.setJdbcUrl("jdbc:mariadb://127.0.0.1:" + arguments[0] + "/" + arguments[1] + "?user=root");
        options.setMaximumPoolSize(3);
        options.setMinimumIdle(0);
        options.setIdleTimeout(10_000);
        HikariDataSource pool = new HikariDataSource(options);
        Connection held = null;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String command; (command = commands.readLine()) != null; ) {
            long answer = 0;
            switch (command) {
                case "hold":
                    held = pool.getConnection();
                    answer = number(held, NEXT);
                    break;
                case "query":
                    try (Connection connection = pool.getConnection()) {
                        answer = number(connection, NEXT);
                    }
                    break;
                case "idle":
                    try (Connection connection = pool.getConnection()) {
                        answer = number(connection, "SELECT CONNECTION_ID()");
                    }
                    break;
                case "return":
                    held.close();
                    break;
                case "ack":
                    try (Connection connection = pool.getConnection()) {
                        answer = connection.createStatement().executeUpdate("ACK jobs WHERE id = 1 AND epoch = 1");
                    }
                    break;
                case "cancel": // A wait of 20 s.
                    try (Connection connection = pool.getConnection(); Statement wait = connection.createStatement()) {
                        new Timer(true).schedule(new TimerTask() {
                            public void run() {
                                try {
                                    wait.cancel();
                                } catch (SQLException error) {
                                    throw new RuntimeException(error);
                                }
                            }
                        }, 500);
                        wait.executeQuery("STREAM id FROM jobs LIMIT 1 WAIT 20");
                    } catch (SQLException error) {
                        answer = error.getErrorCode();
                    }
                    break;
            }
            System.out.println(answer);
            if (arguments[2].equals("evict")) pool.getHikariPoolMXBean().softEvictConnections();
        }
        pool.close();
    }
}
