//! `docs/stores/hazelcast.md` repeats what the code declares.

use std::path::Path;
use std::time::Duration;

#[test]
fn the_page_has_every_guarantee_and_its_tests_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let page = read(&root.join("../../docs/stores/hazelcast.md"));
    let guarantees = tenure_hazelcast::guarantees(Duration::from_secs(300));
    for cell in &guarantees.faults {
        let row = format!("| {} | {cell} | {} | ", cell.fault.as_str(), cell.note);
        let found = page.lines().find_map(|line| line.strip_prefix(&row));
        let evidence = found.unwrap_or_else(|| panic!("no row begins with {row}"));
        let test = evidence.strip_prefix("`tenure-hazelcast/tests/");
        let test = test.and_then(|it| it.strip_suffix("` |")?.split_once("::"));
        if let Some((file, name)) = test {
            let source = read(&root.join("tests").join(file));
            assert!(
                source.contains(&format!("fn {name}()")),
                "{file} has no {name}"
            );
        }
    }
}
