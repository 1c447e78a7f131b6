//! Which fault of a run explains a finding: the store's table of guarantees says under which faults it may happen.

use tenure::guarantees::{Cell, Fault, Guarantees, Promise};

use crate::history::History;
use crate::plan::FaultKind;

/// The faults of a run, and what the store promises under each.
#[derive(Clone, Copy)]
pub(crate) struct DocumentedFaults<'a> {
    pub(crate) history: &'a History,
    pub(crate) promises: &'a Guarantees,
    pub(crate) ttl: u64,
}

impl DocumentedFaults<'_> {
    /// The first fault that was active at `at`, or shortly before, and under which the table `allows` the finding.
    /// A cell that the table does not have promises nothing.
    pub(crate) fn at(&self, at: u64, allows: impl Fn(Option<&Cell>) -> bool) -> Option<FaultKind> {
        let mut near = self
            .history
            .faults
            .iter()
            .filter(|it| it.from <= at && at <= it.to.saturating_add(2 * self.ttl));
        near.find(|it| self.any_cell_allows(it.kind, &allows))
            .map(|it| it.kind)
    }

    /// The fault under which two may hold at `at`.
    pub(crate) fn overlap_at(&self, at: u64) -> Option<FaultKind> {
        self.at(at, |cell| {
            cell.is_none_or(|cell| cell.promise == Promise::Nothing)
        })
    }

    /// The fault after which tokens may be too small at `at`. Once a store has forgotten its counter, every later token may
    /// be too small.
    pub(crate) fn token_regress_at(&self, at: u64) -> Option<FaultKind> {
        let mut earlier = self.history.faults.iter().filter(|it| it.from <= at);
        let regress = |cell: Option<&Cell>| cell.is_none_or(|cell| cell.token_regress);
        earlier
            .find(|it| self.any_cell_allows(it.kind, regress))
            .map(|it| it.kind)
    }

    /// The fault under which a leader without a token may be seen at `at`. Where locks end with a broken connection, the server
    /// has the lock in a session and the token in a row of a table, and a fault may come between the two.
    pub(crate) fn without_token_at(&self, at: u64) -> Option<FaultKind> {
        let partition = self.promises.cell(Fault::Partition);
        let ends_with_connection = partition.is_some_and(|cell| cell.promise == Promise::Nothing);
        self.at(at, |_| ends_with_connection)
    }

    pub(crate) fn any_cell_allows(
        &self,
        kind: FaultKind,
        allows: impl Fn(Option<&Cell>) -> bool,
    ) -> bool {
        let mut causes = kind.causes().iter();
        causes.any(|cause| allows(self.promises.cell(*cause)))
    }
}
