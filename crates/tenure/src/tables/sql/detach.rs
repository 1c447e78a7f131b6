//! The statement that extends the lease of one hold, for a client that detaches the hold or attaches itself to it.

use tenure_core::options::Mode;
use tenure_core::support::mode_text;

use super::{RenewItem, SEVERAL, Statement, Statements};

/// What the first column says of a hold that is there.
pub(crate) const FOUND: &str = "H";

impl Statements {
    /// Lets the hold last for the ttl from now on at least. A row that begins with [`FOUND`], if there is such a hold: in this
    /// mode, or upgradable and exclusive for a moment, until an upgrade that was given up is undone.
    ///
    /// A renewal also finds a hold whose lease is over while `lock_delay` keeps the name. This statement does not: such a hold
    /// has ended. The row of the name stays locked from the first step on, so what is found is what was extended.
    pub(crate) fn lease(&self, what: &str, item: &RenewItem, mode: Mode) -> Statement {
        let (now, name) = (self.dialect.now(), self.dialect.name(&item.name));
        let (locks, modes, owner) = (&self.locks, &self.modes, &item.owner);
        let (mut steps, mut found) = (Vec::new(), Vec::new());
        steps.extend(self.lock_rows(&format!("name={name}")));
        if matches!(mode, Mode::Exclusive | Mode::Upgradable) {
            steps.push(self.extend_lock(item, &format!("until-delay>{now}")));
            found.push(format!(
                "SELECT '{FOUND}' FROM {locks} WHERE name={name} AND owner='{owner}' AND until-delay>{now}"
            ));
        }
        let texts = [false, true].map(|is_upgrading| mode_text(mode, is_upgrading));
        if let [Some(text), Some(upgrading)] = texts {
            let is_in_mode = format!("token>0 AND mode IN('{text}','{upgrading}')");
            steps.push(self.extend_mode(item, &is_in_mode));
            steps.push(self.cover_modes(&name));
            found.push(format!(
                "SELECT '{FOUND}' FROM {modes} WHERE name={name} AND owner='{owner}' AND {is_in_mode} AND until-delay>{now} AND EXISTS(SELECT 1 FROM {locks} l WHERE l.name={name} AND l.owner='{SEVERAL}')"
            ));
        }
        steps.extend(found);
        self.transaction(what, &steps).urgent()
    }
}
