//! Attached disks that cannot be used, and what to do about them.

use super::advice::Finding;
use super::counters::Verdict;
use crate::attach::remedy;
use crate::print::chain;
use nvmf_attached::{Attachment, State};

/// What is wrong with attached disks, and with their paths.
pub(super) fn findings(disks: &[Attachment]) -> Vec<Finding> {
    disks.iter().flat_map(of_disk).collect()
}

/// Where it cannot be told which disks are attached, for this reason.
pub(super) fn unlisted(reason: &anyhow::Error) -> Finding {
    let what = format!("it is not known which disks are attached: {}", chain(reason));
    Finding::new(Verdict::Bad, "nvmf list", what, "nvmf list fails for the same reason: mend what it names")
}

/// Of a disk whose server does not answer, for this reason.
pub(super) fn silent(disk: &Attachment, reason: &anyhow::Error) -> Finding {
    let (place, pid) = (disk.place().display().to_string(), disk.pid);
    let mend = format!(
        "look at process {pid}: stopped, it goes on with kill -CONT {pid}; killed, another one takes the disk over"
    );
    Finding::new(
        Verdict::Bad,
        &place,
        format!("the attached disk cannot be used now: {}", chain(reason)),
        mend,
    )
}

fn of_disk(disk: &Attachment) -> Vec<Finding> {
    let place = disk.place().display().to_string();
    let what = || {
        let reason = disk.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("the attached disk is {}{reason}", disk.state.as_str())
    };
    let at_target = format!("look at the target, {}: nvmf doctor {}", disk.nqn, disk.address);
    let finding = |level, mend: String| vec![Finding::new(level, &place, what(), mend)];
    match disk.state {
        State::Live => of_paths(disk, &place),
        State::Attaching | State::Ending => Vec::new(),
        State::Reconnecting | State::Inaccessible => finding(Verdict::Watch, at_target),
        State::Lost => finding(Verdict::Bad, format!("nvmf reconnect {place}")),
        State::Foreign | State::Removed | State::Killed => finding(Verdict::Bad, remedy(disk)),
        State::Unknown => finding(
            Verdict::Watch,
            "use the nvmf that attached it; where its server is gone, nvmf detach clears it away".to_owned(),
        ),
    }
}

/// Of a disk that works: paths without which it has less to fall back on.
fn of_paths(disk: &Attachment, place: &str) -> Vec<Finding> {
    let away = disk.paths.iter().filter(|path| path.state != State::Live);
    let finding = |path: &nvmf_attached::AttachedPath| {
        let reason = path.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let what = format!("its path {} is {}{reason}", path.address, path.state.as_str());
        Finding::new(Verdict::Watch, place, what, format!("nvmf doctor {}", path.address))
    };
    away.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_attached::AttachedPath;

    #[test]
    fn disk_that_cannot_be_used_is_a_finding() {
        let disk = |state| Attachment { device: Some("/dev/ublkb0".into()), state, ..Attachment::default() };
        assert!(findings(&[disk(State::Live), disk(State::Ending)]).is_empty());
        let lost = &findings(&[disk(State::Lost)])[0];
        assert_eq!((lost.level, lost.mend.as_str()), (Verdict::Bad, "nvmf reconnect /dev/ublkb0"));
        let away = AttachedPath {
            state: State::Reconnecting,
            reason: Some("no route".to_owned()),
            ..AttachedPath::default()
        };
        let several = Attachment {
            paths: vec![AttachedPath { state: State::Live, ..away.clone() }, away],
            ..disk(State::Live)
        };
        let found = findings(&[several]);
        assert!(found.len() == 1 && found[0].level == Verdict::Watch && found[0].what.contains("no route"));
    }
}
