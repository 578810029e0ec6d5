//! `unknown`: the evidence is not enough; says which is missing and how to get it.
//!
//! Always answers. Confidence: unknown.

use super::case::Case;
use super::{Verdict, remedies, words};
use crate::explanation::{CauseId, Confidence};

#[expect(clippy::unnecessary_wraps, reason = "a rule: the last one, which always answers")]
pub(super) fn verdict(case: &Case<'_>) -> Option<Verdict> {
    Some(answer(case))
}

pub(super) fn answer(case: &Case<'_>) -> Verdict {
    let whose = super::inherited_descriptor::whose(case);
    let summary = match case.owner.id {
        Some(_) => format!(
            "{} is charged to {whose}; no process is seen to hold its files, and the evidence does not say what keeps it.",
            words::amount(case.bytes, case.gpu)
        ),
        None => format!("{} is held, and the evidence does not say by whom.", words::amount(case.bytes, case.gpu)),
    };
    let missing = "not seen: a holder in another form than a descriptor (an imported memory object, a kernel client), or a process of another PID namespace";
    let remedy = remedies::wait("let `outlive record` run while the job runs and ends; it sees how the memory is handed on.", None);
    Verdict { cause: CauseId::Unknown, confidence: Confidence::Unknown, summary, facts: vec![(None, missing.to_owned())], remedy: vec![remedy] }
}
