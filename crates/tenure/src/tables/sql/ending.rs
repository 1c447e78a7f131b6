//! The statements that end a hold or a place in the queue.

use tenure_core::store::Hold;

use super::{CHANNEL, Dialect, Statement, Statements, digest};

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldEnd {
    Clean,
    /// The hold was lost or is ended by an operator, so `lock_delay` applies.
    Unclean,
    /// The hold is given back and was never used, so nothing stays reserved.
    Unused,
}

impl HoldEnd {
    /// How this hold ends when it is released.
    pub(crate) fn of(hold: &Hold) -> Self {
        match (hold.unused, hold.unclean) {
            (true, _) => Self::Unused,
            (false, true) => Self::Unclean,
            (false, false) => Self::Clean,
        }
    }
}

impl Statements {
    /// Until when the name stays taken after its hold has ended.
    fn rest(&self, end: HoldEnd) -> String {
        let (now, max) = (self.dialect.now(), self.dialect.max());
        let rest = match end {
            HoldEnd::Clean => "since+min_hold".to_owned(),
            HoldEnd::Unclean => format!("{max}(since+min_hold,{now}+delay)"),
            HoldEnd::Unused => return "0".to_owned(),
        };
        // Zero and not the clock, because the clock may be set back.
        format!("CASE WHEN {rest}>{now} THEN {rest} ELSE 0 END")
    }

    /// Ends the hold that `which` selects. Returns a row for each changed one, or their number.
    fn finish(
        &self,
        what: &str,
        name: &str,
        which: &str,
        (end, tells_observers): (HoldEnd, bool),
    ) -> Statement {
        let (now, locks, rest) = (self.dialect.now(), &self.locks, self.rest(end));
        let literal = self.dialect.name(name);
        let update = format!(
            "UPDATE {locks} SET until={rest},owner='',holder='' WHERE name={literal} AND {which} AND until>{now}"
        );
        match self.dialect {
            Dialect::Postgres => {
                let digest = digest(&self.table, name);
                let channel = tells_observers.then(|| self.channel(name));
                let tell = channel
                    .flatten()
                    .map(|channel| format!(",pg_notify('{channel}','')"));
                let tell = tell.unwrap_or_default();
                Statement::rows(format!(
                    "/*tenure:{what}*/ WITH r AS({update} RETURNING queued)SELECT CASE WHEN queued>{now} THEN pg_notify('{CHANNEL}','free {digest}')END{tell} FROM r"
                ))
            }
            _ => Statement::count(format!("/*tenure:{what}*/ {update}")),
        }
    }

    pub(crate) fn release(
        &self,
        name: &str,
        owner: &str,
        end: HoldEnd,
        was_leader: bool,
    ) -> Statement {
        let which = format!("owner='{owner}'");
        let release = self.finish("release", name, &which, (end, was_leader));
        release.urgent()
    }

    /// Whether the holder leads an election is not known here, so observers are told in any case.
    pub(crate) fn break_lock(&self, name: &str, token: u64) -> Statement {
        let which = format!("token={token} AND owner NOT IN('','*')");
        self.finish("break", name, &which, (HoldEnd::Unclean, true))
    }

    /// Releases the hold, or leaves the queue, whichever the owner has. `may_lead`: the hold may be one of which observers were
    /// told. The first row is `[owner, µs until the lease ends]`, as it was before.
    pub(crate) fn dequeue(
        &self,
        name: &str,
        owner: &str,
        end: HoldEnd,
        may_lead: bool,
    ) -> Statement {
        let (now, locks, waiters) = (self.dialect.now(), &self.locks, &self.waiters);
        let (literal, rest) = (self.dialect.name(name), self.rest(end));
        let lock = match self.dialect {
            Dialect::Sqlite => "",
            _ => " FOR UPDATE",
        };
        let mut steps = vec![
            format!("SELECT owner,until-{now} FROM {locks} WHERE name={literal}{lock}"),
            format!("DELETE FROM {waiters} WHERE owner='{owner}'"),
            format!("DELETE FROM {waiters} WHERE name={literal} AND until<={now}"),
        ];
        let is_held = format!("name={literal} AND owner='{owner}' AND until>{now}");
        if may_lead {
            let tell = self.tell_observers(name);
            steps.extend(tell.map(|tell| format!("{tell}FROM {locks} WHERE {is_held}")));
        }
        steps.push(format!(
            "UPDATE {locks} SET until={rest},owner='',holder='' WHERE {is_held}"
        ));
        steps.push(self.count_queue(&literal));
        steps.extend(self.tell_first(&literal, ""));
        steps.extend(self.tell_free(name));
        self.transaction("release", &steps).urgent()
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    /// Otherwise observers would show a leader that never led, until its lease ends.
    #[test]
    fn observers_are_told_of_the_end_of_a_hold_that_may_be_a_leaders() {
        let statements = Statements::new(Dialect::Postgres, "tenure_locks");
        let channel = statements.channel("a").unwrap();
        let of = |may_lead| {
            let dequeue = statements.dequeue("a", "1f", HoldEnd::Unused, may_lead);
            dequeue.sql
        };
        assert!(!of(false).contains(&channel));
        let tells = of(true);
        let (before, after) = tells.split_once(&channel).unwrap();
        // The row says whether it is held until it is changed.
        let ends = "SET until=0,owner=''";
        assert!(!before.contains(ends), "{tells}");
        let (tells_if, _) = after.split_once(ends).unwrap();
        assert!(tells_if.contains("AND owner='1f' AND until>"), "{tells}");
    }
}
