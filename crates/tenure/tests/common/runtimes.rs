//! What outlives the runtime of its client.

use std::cell::Cell;
use std::sync::Once;

thread_local! {
    /// How often this thread has panicked since it began to count.
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Drops a guard and its client after their runtime. No code may panic, even if the panic is caught: with `panic = "abort"` it
/// would end the process.
pub(crate) fn assert_no_panic_after_the_runtime(url: &str, name: &str) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            others(info);
        }));
    });
    let (url, name) = (url.to_owned(), name.to_owned());
    let dropped = std::thread::spawn(move || {
        let builder = &mut tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.enable_all().build().unwrap();
        let held = runtime.block_on(async {
            let client = super::connect(&url).await;
            let guard = client.lock(&name).acquire().await.unwrap();
            (guard, client)
        });
        drop(runtime);
        drop(held);
        PANICS.get()
    });
    assert_eq!(dropped.join().unwrap(), 0, "panics, by the hook");
}
