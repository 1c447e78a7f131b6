//! A pseudo-terminal that controls the session of its process.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::Store;

/// A process whose standard streams are a terminal, and the other side of that terminal.
pub(crate) struct Terminal {
    keys: File,
    pub(crate) child: Child,
    shown: String,
}

impl Terminal {
    pub(crate) fn new(store: &Store, arguments: &[&str]) -> Self {
        Self::of(
            store,
            &[&[env!("CARGO_BIN_EXE_tenure")], arguments].concat(),
        )
    }

    pub(crate) fn of(store: &Store, command: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(
            &master,
            Winsize {
                ws_row: 24,
                ws_col: 200,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )
        .unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let stream = || -> Stdio { ioctl_tiocgptpeer(&master, flags).unwrap().into() };
        // `setsid -c` makes the terminal the controlling one.
        let child = Command::new("setsid")
            .arg("-c")
            .args(command)
            .env("TENURE_URL", store.url())
            .env("PS1", "first> ")
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .unwrap();
        Self {
            keys: File::from(master),
            child,
            shown: String::new(),
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `wanted` is shown. Returns what was shown up to then.
    pub(crate) fn shows(&mut self, wanted: &str) -> String {
        loop {
            if let Some(at) = self.shown.find(wanted) {
                let rest = self.shown.split_off(at + wanted.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            assert!(
                self.read(),
                "the end came before {wanted:?}; shown: {:?}",
                self.shown
            );
        }
    }

    /// The rest of what is shown, until all processes have closed the terminal.
    pub(crate) fn rest(&mut self) -> String {
        while self.read() {}
        std::mem::take(&mut self.shown)
    }

    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        // Far longer than each step takes: a test that hangs fails, with the place.
        let limit = rustix::event::Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        let mut ready = [rustix::event::PollFd::new(
            &self.keys,
            rustix::event::PollFlags::IN,
        )];
        let ready = rustix::event::poll(&mut ready, Some(&limit)).unwrap();
        assert!(
            ready > 0,
            "nothing more was shown for a minute, after {:?}",
            self.shown
        );
        match self.keys.read(&mut bytes) {
            // A terminal reports an error when its other side is closed.
            Ok(0) | Err(_) => false,
            Ok(len) => {
                self.shown += &String::from_utf8_lossy(&bytes[..len]);
                true
            }
        }
    }

    pub(crate) fn code(&mut self) -> i32 {
        self.child
            .wait()
            .unwrap()
            .code()
            .expect("the process exits, and no signal ends it")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
