//! The guard at the beginning of a test that needs something that is not installed everywhere.

/// Returns from the test, unless everything that it needs is installed.
///
/// `needs!(redis)` names a server by its module here, `needs!("cc")` a program on the path, and `needs!(tracer)` asks
/// whether a process may be traced on this machine. Where one is missing, the macro prints a line `SKIP` with the name
/// of the test and of what is missing, and executes `return`. `scripts/test` counts these lines, and in CI they are
/// failures. Otherwise the macro blocks the thread until the machine is idle, so that a lease does not end because other
/// tests use the processors.
///
/// It is the first statement of a test, whose function returns `()`.
#[macro_export]
macro_rules! needs {
    ($($needed:tt),+) => {
        $(if $crate::needs!(@skip_unless_installed $needed) {
            return;
        })+
    };
    (@skip_unless_installed $program:literal) => {
        $crate::skip_unless_installed(&[$program])
    };
    (@skip_unless_installed tracer) => {
        $crate::clock::skip_unless_traceable()
    };
    (@skip_unless_installed $server:ident) => {
        $crate::$server::skip_unless_installed()
    };
}
