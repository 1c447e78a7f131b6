//! Names that somebody may give to a lock who is careless or no friend. All of them are names, each of another lock.

/// As they are, in no order; no two are the same text.
const TEXTS: &[&str] = &[
    // Paths.
    ".",
    "..",
    "...",
    "/",
    "//",
    "/.",
    "/..",
    "./",
    "../",
    "../..",
    "../../",
    "../../../../etc/passwd",
    "/etc/passwd",
    "./x",
    "x/.",
    "x/..",
    "x/../y",
    "x//y",
    "x/./y",
    "/x",
    "//x",
    "x/",
    "x//",
    "~",
    "~root",
    "~/.ssh/id_rsa",
    "..\\..\\x",
    "\\\\host\\share",
    "C:\\x",
    "C:",
    "file:///x",
    "x\\",
    "\\x",
    "x:stream",
    "x::$DATA",
    // Reserved somewhere.
    "CON",
    "con",
    "NUL",
    "nul",
    "aux",
    "COM1",
    "lpt1.txt",
    "zookeeper",
    "zookeeper/quota",
    "Zookeeper",
    ".mutex",
    ".floor",
    ".probe",
    "lost+found",
    ".git",
    "-rf",
    "--",
    "--help",
    "-",
    // Like what lies beside a lock.
    "x:queue",
    "x:hold",
    "x:token",
    "x:wait",
    "tenure:{x}:hold",
    "tenure:{x}:queue",
    "tenure:{x}:wait",
    "tenure:=x",
    "tenure:=tenure:{x}:hold",
    "tenure:",
    "tenure:{",
    "tenure:push:x",
    "redisson_lock_token:{x}",
    "redisson_lock__channel:{x}",
    "tenure_locks",
    "tenure_locks_waiters",
    "tenure_holders",
    "free 0123456789abcdef",
    "lock-0000000001",
    "x-lock-0000000001",
    "_c_00000000-0000-0000-0000-000000000000-lock-0000000000",
    "x0000000000",
    "x-2147483648",
    "x/694d7f0a1b2c3d4e",
    "694d7f0a1b2c3d4e",
    "x%s0",
    "x%p0",
    "x%s00",
    "x%~",
    "%~",
    // Like a name that was hashed.
    "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
    "2D711642B726B04401627CA9FBAC32F5C8530FB1903CC4DB02258717921A4881",
    "tenure:2de05e7c62af4c13a18650d14e31498b42c31a05b1adceb1b37b767f1",
    "x%~2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
    "-3720329102846031715",
    "-866206620,1632667805",
    "7,9",
    "0",
    "00",
    "-0",
    "+1",
    "1e3",
    "0x10",
    "9223372036854775808",
    // Escapes, of several kinds and depths.
    "%",
    "%%",
    "%2f",
    "%2F",
    "%252f",
    "%252F",
    "x%2fy",
    "x%2Fy",
    "x/y",
    "%2e%2e%2f",
    "%00",
    "%",
    "%zz",
    "%u002f",
    "\\0",
    "\\\\0",
    "\\\\",
    "\\",
    "\\x00",
    "\\u0000",
    "&#47;",
    "&amp;",
    "=2F",
    "+",
    "x+y",
    // Controls.
    "\0",
    "x\0",
    "\0x",
    "x\0y",
    "x\0z",
    "x\0\0",
    "\n",
    "x\n",
    "x\r",
    "x\r\n",
    "x\r\nSET y 1\r\n",
    "x\n\n",
    "\t",
    "x\t",
    "\u{b}",
    "\u{1}",
    "x\u{1b}[31m",
    "x\u{1b}]0;title\u{7}",
    "x\u{8}\u{8}",
    "x\u{7f}",
    "x\u{85}",
    "x\u{9b}31m",
    // Spaces and dots at the ends.
    " ",
    "  ",
    " x",
    "x ",
    "x  ",
    "x.",
    "x..",
    ".x",
    "x . ",
    "\u{a0}",
    "x\u{a0}",
    "x\u{2003}",
    "x\u{3000}",
    "x\u{2028}",
    "x\u{2029}",
    // What reorders a line or is not seen.
    "x\u{202e}txt.exe",
    "\u{202e}x",
    "\u{2066}x\u{2069}",
    "x\u{200e}",
    "x\u{200f}",
    "x\u{200b}",
    "x\u{200c}",
    "x\u{200d}",
    "x\u{2060}",
    "x\u{ad}",
    "x\u{feff}",
    "\u{feff}x",
    "x\u{fe0f}",
    "x\u{e0001}",
    "x\u{34f}",
    // Pairs that are one text to somebody.
    "x",
    "X",
    "\u{e9}",
    "e\u{301}",
    "\u{c9}",
    "E\u{301}",
    "\u{c5}",
    "A\u{30a}",
    "\u{212b}",
    "\u{fb01}",
    "fi",
    "FI",
    "\u{df}",
    "ss",
    "SS",
    "\u{1e9e}",
    "\u{131}",
    "i",
    "I",
    "\u{130}",
    "i\u{307}",
    "\u{17f}",
    "s",
    "\u{3c3}",
    "\u{3c2}",
    "\u{3a3}",
    "\u{212a}",
    "k",
    "K",
    "\u{ff41}",
    "a",
    "\u{430}",
    "\u{251}",
    "\u{ff0f}",
    "\u{2215}",
    "\u{ff0e}\u{ff0e}",
    "\u{2024}",
    "\u{2460}",
    "1",
    "\u{661}",
    "\u{ac00}",
    "\u{1100}\u{1161}",
    "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
    "\u{1f468}\u{1f469}\u{1f467}",
    "\u{1f44d}",
    "\u{1f44d}\u{1f3fd}",
    "\u{1f1e9}\u{1f1ea}",
    "\u{1f512}",
    "\u{10ffff}",
    "\u{fffd}",
    "\u{ffff}",
    "\u{e000}",
    "\u{d7ff}",
    // Braces, which choose a slot.
    "{}",
    "{x}",
    "{x}y",
    "y{x}",
    "{x",
    "x}",
    "}{",
    "{{x}}",
    "{}x",
    "x{}",
    "{x}{y}",
    // Patterns.
    "*",
    "?",
    "**",
    "x*",
    "x?",
    "[x]",
    "[a-z]",
    "[^x]",
    "_",
    "x_",
    "x%",
    ".*",
    "^x$",
    "(x|y)",
    // Of other languages.
    "'",
    "''",
    "\"",
    "`",
    "x'; DROP TABLE tenure_locks; --",
    "x' OR '1'='1",
    "x/*",
    "*/x",
    "x-- ",
    "x#",
    "$1",
    "?1",
    ":x",
    "@x",
    "`id`",
    "$(id)",
    "${HOME}",
    "$IFS",
    "x;id",
    "x|id",
    "x&id",
    "x>y",
    "!x",
    "]]",
    "[[x]]",
    "]]..redis.call('FLUSHALL')..[[",
    "ARGV[1]",
    "{\"name\":1}",
    "<script>",
    "{{7*7}}",
    "%s%n%x",
    "x,y",
    "x=y",
    "x:y",
    "x#y",
    "null",
    "true",
    "NaN",
    "undefined",
];

/// All of them, and long ones which differ by a byte.
pub(crate) fn names() -> Vec<String> {
    let mut names: Vec<_> = TEXTS.iter().map(|text| (*text).to_owned()).collect();
    for (length, unit) in [(512, "x"), (512, "X"), (512, "../"), (512, "\u{1f512}")] {
        let long = unit.repeat(length / unit.len());
        names.extend([format!("{long}a"), format!("{long}b"), format!("a{long}")]);
    }
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_two_hundred_and_all_of_them_are_names() {
        let names = names();
        assert!(names.len() >= 200, "{}", names.len());
        for name in names {
            crate::LockName::new(&name).unwrap();
        }
    }
}

/// What every way to write a name down must keep. For the unit tests of a store; panics where a promise is broken.
pub mod written {
    use std::collections::HashMap;

    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    /// The hostile names, and five thousand that are made from them by small changes.
    pub fn many() -> Vec<String> {
        let mut names = super::names();
        let first = names.len();
        let letters: Vec<char> =
            "xXaA0129%/\\.:;,{}~-_+ '\"\0\n\u{7f}\u{85}\u{e9}e\u{301}\u{df}\u{1f512}\u{ffff}sp=f2F"
                .chars()
                .collect();
        let mut rng = StdRng::seed_from_u64(17);
        for round in 0..5_000 {
            // Every second one from another one that was made: the changes add up.
            let most = if round % 2 == 0 { first } else { names.len() };
            let mut chars: Vec<_> = names[rng.random_range(0..most)].chars().collect();
            let letter = letters[rng.random_range(0..letters.len())];
            let at = rng.random_range(0..=chars.len());
            match rng.random_range(0..3) {
                0 => chars.insert(at, letter),
                1 if at < chars.len() => chars[at] = letter,
                _ if at < chars.len() => drop(chars.remove(at)),
                _ => chars.push(letter),
            }
            let name: String = chars.into_iter().collect();
            if crate::LockName::new(&name).is_ok() {
                names.push(name);
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// No two names have a text in common.
    #[track_caller]
    pub fn assert_apart(written: impl Fn(&str) -> Vec<String>) {
        let mut seen: HashMap<String, String> = HashMap::new();
        for name in many() {
            for text in written(&name) {
                if let Some(other) = seen.insert(text.clone(), name.clone()) {
                    assert_eq!(other, name, "both are written {text:?}");
                }
            }
        }
    }

    /// Whatever is written is read again.
    #[track_caller]
    pub fn assert_read_back(write: impl Fn(&str) -> String, read: impl Fn(&str) -> Option<String>) {
        for name in many() {
            let text = write(&name);
            assert_eq!(read(&text).as_ref(), Some(&name), "written {text:?}");
        }
    }
}
