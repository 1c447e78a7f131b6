import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;

import javax.sql.DataSource;

import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.mariadb.jdbc.MariaDbDataSource;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.jdbc.core.JdbcTemplate;

/** ShedLock's provider over JDBC, by the time of the database. A wait is a try every 10 ms: it knows no other. */
public final class Driver extends Orders<Driver.Hold> {
    private static final String BY = "SELECT locked_by FROM shedlock WHERE name = ?";

    private final JdbcTemplate template;
    private final JdbcTemplateLockProvider provider;

    private Driver(DataSource source) {
        template = new JdbcTemplate(source);
        provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
                .withJdbcTemplate(template).usingDbTime().build());
    }

    /** The third argument is `mysql` or `postgres`, then follow user, password and database. */
    public static void main(String[] arguments) throws Exception {
        String at = "//" + arguments[0] + ":" + arguments[1] + "/" + arguments[5];
        DataSource source = arguments[2].equals("mysql")
                ? new MariaDbDataSource("jdbc:mariadb:" + at + "?user=" + arguments[3] + "&password=" + arguments[4])
                : postgres("jdbc:postgresql:" + at, arguments[3], arguments[4]);
        Driver driver = new Driver(source);
        // Classes are loaded, and the first lock is as quick as the next.
        driver.unlock(driver.lock("shedlock-is-ready", 0, 10));
        driver.serve("ShedLock " + LockConfiguration.class.getPackage().getImplementationVersion());
    }

    private static DataSource postgres(String url, String user, String password) {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl(url);
        source.setUser(user);
        source.setPassword(password);
        return source;
    }

    @Override
    Hold lock(String name, long wait, long lease) throws Exception {
        long until = System.nanoTime() + wait * 1_000_000;
        while (true) {
            LockConfiguration wanted = new LockConfiguration(
                    Instant.now(), name, Duration.ofMillis(lease), Duration.ZERO);
            Optional<SimpleLock> lock = provider.lock(wanted);
            if (lock.isPresent()) {
                return new Hold(name, lock.get());
            }
            if (System.nanoTime() >= until) {
                return null;
            }
            Thread.sleep(10);
        }
    }

    /** It does not tell whether it was held. */
    @Override
    boolean unlock(Hold hold) {
        hold.lock.unlock();
        return true;
    }

    /** It cannot say. */
    @Override
    boolean locked(String name) {
        throw new UnsupportedOperationException();
    }

    @Override
    String value(Hold hold) {
        List<String> by = template.queryForList(BY, String.class, hold.name);
        return by.isEmpty() ? "" : by.get(0);
    }

    record Hold(String name, SimpleLock lock) {
    }
}
