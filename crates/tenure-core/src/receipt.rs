//! A hold written down: what another process needs to attach itself to it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::fence::{FencingToken, OwnerId};
use crate::name::LockName;
use crate::options::Mode;

/// A hold that was [detached](crate::Guard::detach) from its process, written down.
///
/// `Display` writes it as one line of text without spaces, which `FromStr` and, with the feature `serde`, `Deserialize` read
/// back: for a file, an output of a CI job, or a field in a database. [`Client::attach`](crate::Client::attach) makes a guard of it.
///
/// **The text is a secret of the holder.** It has the identity of the hold, and a program that reads it can release the lock.
/// The text gives no access to the store: it says where the store is, and never has a user or a password. `Debug` leaves the
/// identity out, so a log of a receipt is harmless.
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// let store = tenure::memory::Store::new();
/// let (first, second) = (tenure::Client::from_store(store.clone())?, tenure::Client::from_store(store)?);
/// let text = first.lock("staging").acquire().await?.detach().await?.to_string();
/// first.close().await;
///
/// let receipt: tenure::Receipt = text.parse()?;
/// assert_eq!(receipt.name().as_str(), "staging");
/// second.attach(&receipt).await?.release().await
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Receipt {
    store: StoreAddress,
    mode: Mode,
    ttl: Duration,
    /// At least one, in the order of the guard.
    holds: Vec<ReceiptHold>,
}

/// One name of a receipt.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ReceiptHold {
    pub(crate) name: LockName,
    pub(crate) token: FencingToken,
    pub(crate) owner: OwnerId,
}

/// Where a store is. The type has no room for a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreAddress(String);

impl StoreAddress {
    /// The address without what stands before the last `@` of its hosts. What begins with a slash after `://` has no hosts.
    pub(crate) fn without_login(address: &str) -> Self {
        let (scheme, rest) = address.split_at(address.find("://").map_or(0, |at| at + 3));
        let has_login = !scheme.is_empty() && !rest.starts_with('/');
        let rest = match rest.rsplit_once('@') {
            Some((_, rest)) if has_login => rest,
            _ => rest,
        };
        Self(format!("{scheme}{rest}"))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What each receipt begins with; the number is the version of the format.
const FORMAT: &str = "tenure-receipt-";
const VERSION: &str = "1";

impl Receipt {
    /// A receipt of these holds, at least one.
    pub(crate) fn new(
        store: StoreAddress,
        mode: Mode,
        ttl: Duration,
        holds: Vec<ReceiptHold>,
    ) -> Self {
        debug_assert!(!holds.is_empty(), "BUG: a receipt is about something");
        Self {
            store,
            mode,
            ttl,
            holds,
        }
    }

    /// Where the store is, without user and password: in the words of [`Client::with_address`](crate::Client::with_address), or
    /// the scheme of a store that has no address.
    pub fn store(&self) -> &str {
        self.store.as_str()
    }

    /// The name that is held; if there are several, the first one in byte order.
    pub fn name(&self) -> &LockName {
        &self.holds[0].name
    }

    /// The fencing token of [`name`](Self::name).
    pub fn token(&self) -> FencingToken {
        self.holds[0].token
    }

    /// Every name with its fencing token, in byte order.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.holds.iter().map(|hold| (&hold.name, hold.token))
    }

    /// How the names are held.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The lease for which [`Client::attach`](crate::Client::attach) renews the hold. It says nothing about what is left of the
    /// lease now, which the store alone knows.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The same receipt with another lease. The lease in the store changes when a client attaches itself; it never becomes
    /// shorter than it is.
    #[must_use]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// One receipt for each name, in byte order: each hold can be renewed and released alone, also when another one is over.
    pub fn split(&self) -> impl Iterator<Item = Self> {
        self.holds.iter().map(|hold| Self {
            store: self.store.clone(),
            mode: self.mode,
            ttl: self.ttl,
            holds: vec![hold.clone()],
        })
    }

    pub(crate) fn address(&self) -> &StoreAddress {
        &self.store
    }

    pub(crate) fn holds(&self) -> &[ReceiptHold] {
        &self.holds
    }
}

/// The whole receipt, with the identity of the hold: a secret.
impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = Escape(self.store.as_str());
        let ttl = self.ttl.as_micros();
        write!(f, "{FORMAT}{VERSION}:store={store}&ttl={ttl}us&mode=")?;
        match self.mode {
            Mode::Exclusive => f.write_str("exclusive")?,
            Mode::Shared => f.write_str("shared")?,
            Mode::Upgradable => f.write_str("upgradable")?,
            Mode::Permits { limit } => write!(f, "permits-{limit}")?,
        }
        for ReceiptHold { name, token, owner } in &self.holds {
            let (name, owner) = (Escape(name.as_str()), owner.to_hex());
            write!(f, "&name={name}&token={token}&owner={owner}")?;
        }
        Ok(())
    }
}

/// Without the identity of the hold.
impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens: Vec<_> = self
            .tokens()
            .map(|(name, token)| (name, token.get()))
            .collect();
        f.debug_struct("Receipt")
            .field("store", &self.store())
            .field("tokens", &tokens)
            .field("mode", &self.mode)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// Reads what `Display` wrote, and nothing else. White space around it is ignored.
///
/// # Errors
/// `Invalid`, without a word of the text: it may be a secret.
impl FromStr for Receipt {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let not_one =
            "this is no receipt: a receipt is the one line that `detach` or `tenure take` printed";
        let Some(rest) = text.trim().strip_prefix(FORMAT) else {
            return Err(invalid(not_one));
        };
        let (version, rest) = rest.split_once(':').ok_or_else(|| invalid(not_one))?;
        if version != VERSION {
            let is_number = !version.is_empty() && version.bytes().all(|it| it.is_ascii_digit());
            return Err(match is_number && version.len() < 10 {
                true => invalid(format!(
                    "the receipt has format {version}, and this version of tenure reads format {VERSION}: use the version that wrote it"
                )),
                false => invalid(not_one),
            });
        }
        let mut fields = Fields(rest.split('&'));
        let store = fields.take("store")?;
        let store = StoreAddress::without_login(&store);
        let ttl = fields.take("ttl")?;
        let ttl = ttl.strip_suffix("us").and_then(decimal);
        let ttl = Duration::from_micros(ttl.ok_or_else(|| wrong("ttl"))?);
        let mode = read_mode(&fields.take("mode")?).ok_or_else(|| wrong("mode"))?;
        let mut holds = Vec::new();
        while holds.is_empty() || !fields.is_over() {
            let name = LockName::new(fields.take("name")?).map_err(|_| wrong("name"))?;
            let token = decimal(&fields.take("token")?).ok_or_else(|| wrong("token"))?;
            let owner = OwnerId::from_hex(&fields.take("owner")?);
            holds.push(ReceiptHold {
                name,
                token: FencingToken::new(token),
                owner: owner.ok_or_else(|| wrong("owner"))?,
            });
        }
        let receipt = Self::new(store, mode, ttl, holds);
        // One hold has one text, so two texts can be compared, and a text with a login is refused.
        match receipt.to_string() == text.trim() {
            true => Ok(receipt),
            false => Err(invalid("the receipt was changed after it was written")),
        }
    }
}

/// What is left of the fields of a receipt, each a key and a value.
struct Fields<'a>(std::str::Split<'a, char>);

impl Fields<'_> {
    /// The value of the next field, which has this key.
    fn take(&mut self, key: &'static str) -> Result<String, Error> {
        let field = self.0.next().and_then(|field| field.split_once('='));
        match field {
            Some((found, value)) if found == key => unescape(value).ok_or_else(|| wrong(key)),
            _ => Err(invalid(format!(
                "the receipt is cut off or was changed: its field `{key}` is missing"
            ))),
        }
    }

    fn is_over(&self) -> bool {
        self.0.clone().next().is_none()
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn wrong(key: &str) -> Error {
    invalid(format!(
        "the receipt was changed after it was written: its field `{key}` cannot be read"
    ))
}

/// A number as `Display` writes it.
fn decimal(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

fn read_mode(text: &str) -> Option<Mode> {
    match text {
        "exclusive" => Some(Mode::Exclusive),
        "shared" => Some(Mode::Shared),
        "upgradable" => Some(Mode::Upgradable),
        _ => {
            let limit = text.strip_prefix("permits-")?.parse().ok()?;
            Some(Mode::Permits { limit })
        }
    }
}

/// Text in which a byte stands for itself if no shell and no other program gives it a meaning, and else as `%` and two digits.
struct Escape<'a>(&'a str);

impl fmt::Display for Escape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'0'..=b'9'
                | b'A'..=b'Z'
                | b'a'..=b'z'
                | b'.'
                | b'_'
                | b'/'
                | b':'
                | b','
                | b'-' => {
                    write!(f, "{}", char::from(byte))?;
                }
                _ => write!(f, "%{byte:02X}")?,
            }
        }
        Ok(())
    }
}

/// The text that [`Escape`] wrote.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt() -> Receipt {
        let hold = |name: &str, token| ReceiptHold {
            name: LockName::new(name).unwrap(),
            token: FencingToken::new(token),
            owner: OwnerId::from_bytes([0xab; 16]),
        };
        Receipt::new(
            StoreAddress::without_login("redis://127.0.0.1:6379?db=2"),
            Mode::Permits {
                limit: 5.try_into().unwrap(),
            },
            Duration::from_secs(1800),
            vec![hold("gpu & \"co\" 🦀\n%41", 7), hold("z", u64::MAX)],
        )
    }

    #[test]
    fn a_receipt_is_one_word_and_is_read_as_it_was_written() {
        let text = receipt().to_string();
        assert_eq!(
            text,
            "tenure-receipt-1:store=redis://127.0.0.1:6379%3Fdb%3D2&ttl=1800000000us&mode=permits-5\
             &name=gpu%20%26%20%22co%22%20%F0%9F%A6%80%0A%2541&token=7&owner=abababababababababababababababab\
             &name=z&token=18446744073709551615&owner=abababababababababababababababab"
        );
        assert_eq!(text.parse::<Receipt>().unwrap(), receipt());
        assert_eq!(format!(" {text}\n").parse::<Receipt>().unwrap(), receipt());
        let longer = receipt().with_ttl(Duration::from_secs(1));
        assert_eq!(longer.ttl(), Duration::from_secs(1));
        let names = longer.tokens().map(|(name, _)| name.as_str().to_owned());
        assert_eq!(names.last().unwrap(), "z");
        let each = longer
            .split()
            .map(|one| (one.token().get(), one.tokens().count()));
        assert_eq!(each.collect::<Vec<_>>(), [(7, 1), (u64::MAX, 1)]);
        assert_eq!(
            (longer.store(), longer.token().get()),
            ("redis://127.0.0.1:6379?db=2", 7)
        );
    }

    #[test]
    fn each_mode_is_read_as_it_was_written() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Upgradable] {
            let receipt = Receipt { mode, ..receipt() };
            assert_eq!(receipt.to_string().parse::<Receipt>().unwrap().mode(), mode);
        }
    }

    #[test]
    fn the_owner_is_not_in_what_debug_prints() {
        let text = format!("{:?}", receipt());
        assert!(!text.contains("ab") && text.contains("1800s"), "{text}");
    }

    #[test]
    fn every_changed_text_is_refused_and_no_error_repeats_it() {
        let text = receipt().to_string();
        let (short, long) = (&text[..text.len() - 1], format!("{text}&x=y"));
        let other = text.replacen("receipt-1", "receipt-2", 1);
        let login = text.replacen("redis://", "redis://me:secret%40", 1);
        let lower = text.replace("%3F", "%3f");
        let plus = text.replace("token=7", "token=+7");
        for wrong in ["", "x", short, &long, &other, &login, &lower, &plus] {
            let err = wrong.parse::<Receipt>().unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Invalid, "{wrong}");
            let message = err.to_string();
            assert!(
                !message.contains("abab") && !message.contains("secret"),
                "{message}"
            );
        }
        let err = other.parse::<Receipt>().unwrap_err().to_string();
        assert!(
            err.contains("format 2") && err.contains("format 1"),
            "{err}"
        );
    }

    #[test]
    fn an_address_has_no_login() {
        for (given, kept) in [
            ("redis://me:se@cr/et@host/1", "redis://host/1"),
            ("redis+unix:///s?db=1", "redis+unix:///s?db=1"),
            ("sqlite:///a@b.db?", "sqlite:///a@b.db?"),
            ("file:/home/a@b", "file:/home/a@b"),
            ("memory", "memory"),
        ] {
            assert_eq!(StoreAddress::without_login(given).as_str(), kept);
        }
    }
}
