//! Single keys from the terminal, for `watch`.

use std::io::{self, IsTerminal as _, Read as _};
use std::sync::Arc;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::Notify;

use crate::signals;

/// Reads keys as they are pressed. Dropping this restores the settings of the terminal.
pub(crate) struct Keys {
    settings: Option<Termios>,
    quit: Arc<Notify>,
}

impl Keys {
    /// Without a terminal on standard input, and in the background of a shell, there are no keys: a background process
    /// that reads the terminal is stopped.
    pub(crate) fn read() -> Self {
        let quit = Arc::<Notify>::default();
        let settings = match io::stdin().is_terminal() && !signals::is_in_background() {
            true => tcgetattr(io::stdin()).ok(),
            false => None,
        };
        if let Some(settings) = &settings {
            let mut by_key = settings.clone();
            by_key.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &by_key);
            let pressed = quit.clone();
            // The thread ends with the process: a read of a terminal cannot be cancelled.
            std::thread::spawn(move || {
                let is_quit = |key: &u8| matches!(key, b'q' | b'Q');
                let mut keys = io::stdin().lock().bytes().map_while(Result::ok);
                if keys.any(|key| is_quit(&key)) {
                    pressed.notify_one();
                }
            });
        }
        Self { settings, quit }
    }

    /// Resolves when `q` is pressed.
    pub(crate) async fn quit(&self) {
        self.quit.notified().await;
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(settings) = &self.settings {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, settings);
        }
    }
}
