//! Replaces the parts of a record that differ from run to run: counters, times, ids, host and process.

/// Writes `HOST`, `PID`, `UUID`, `HEX`, `HEX8` and `N` for the parts that differ, and escapes control characters.
pub(crate) fn mask(text: &str) -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let text = text.replace(&format!("\"host\":\"{host}\""), "\"host\":\"HOST\"");
    let mut masked = String::new();
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        if let Some((uuid, after)) = rest.split_at_checked(36)
            && is_uuid(uuid)
        {
            masked += "UUID";
            rest = after;
            continue;
        }
        let end = rest
            .find(|char: char| !char.is_ascii_alphanumeric())
            .unwrap_or(rest.len());
        if end == 0 {
            match first.is_control() {
                true => masked.extend(first.escape_debug()),
                false => masked.push(first),
            }
            rest = &rest[first.len_utf8()..];
            continue;
        }
        masked += match word(&rest[..end]) {
            // The key of a lock in etcd ends with the id of a lease, whose digits may all be decimal.
            "N" if masked.ends_with('/') || masked.ends_with("%:") => "HEX",
            word => word,
        };
        rest = &rest[end..];
    }
    masked
}

fn word(word: &str) -> &str {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
    match word {
        _ if word == std::process::id().to_string() => "PID",
        _ if is_number && word.len() >= 10 => "N",
        _ if is_hex && word.len() >= 12 => "HEX",
        // The name of a client.
        _ if is_hex && word.len() == 8 => "HEX8",
        _ => word,
    }
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<_> = text.split('-').map(str::len).collect();
    let is_hex = |byte: u8| byte == b'-' || byte.is_ascii_hexdigit();
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(is_hex)
}

#[test]
fn only_the_parts_that_differ_are_masked() {
    let text = format!(
        "TOKEN 1795571316000123 ttl 30000 {} 0123456789abcdef0123456789abcdef \
         12345678 6f1c2a34-0000-4000-8000-0123456789ab x/3269803a5d4e6a07 x/3269803152436107 \"é\"\0",
        std::process::id()
    );
    assert_eq!(
        mask(&text),
        "TOKEN N ttl 30000 PID HEX HEX8 UUID x/HEX x/HEX \"é\"\\0"
    );
}
