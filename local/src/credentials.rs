//! Finds the user and group that the processes of a workload run as.

use std::path::Path;

use leno_supervise::ProcessCredentials;
use nix::unistd::{Gid, Group, Uid, User};

use crate::plan::RunAs;
use crate::root;

/// The credentials for a user and a group, looked up on this machine or in a root file system. A user or group
/// that is not set is the caller's.
///
/// # Errors
/// The invalid field, `user` or `group`, and the reason.
pub fn of(account: &RunAs) -> Result<ProcessCredentials, (&'static str, String)> {
    if let Some(root) = &account.root {
        return within(root, account);
    }
    let mut credentials = match &account.user {
        None => ProcessCredentials::invoking(),
        Some(wanted) => {
            let (uid, user) = find_user(wanted).map_err(|reason| ("user", reason))?;
            // A number without an account is also used as the group's number.
            let gid = user.map_or(Gid::from_raw(uid.as_raw()), |user| user.gid);
            ProcessCredentials::of_user(uid, gid)
        }
    };
    if let Some(wanted) = &account.group {
        credentials.gid = find_group(wanted).map_err(|reason| ("group", reason))?;
        if !credentials.groups.contains(&credentials.gid) {
            credentials.groups.push(credentials.gid);
        }
    }
    Ok(credentials)
}

/// The credentials according to the accounts of a root file system.
fn within(root: &Path, account: &RunAs) -> Result<ProcessCredentials, (&'static str, String)> {
    let missing = |what: &'static str, wanted: &str| {
        let root = root.display();
        (
            what,
            format!(
                "{root} has no {what} {wanted:?}: name one that exists there, or write a \
                 number"
            ),
        )
    };
    let mut credentials = match &account.user {
        // The caller's home directory does not exist in the root file system.
        None => ProcessCredentials { home: Some("/".into()), ..ProcessCredentials::invoking() },
        Some(wanted) => match (root::user(root, wanted), wanted.parse()) {
            (Some(user), _) => {
                let groups = root::groups(root, None, Some(&user.name));
                ProcessCredentials {
                    uid: user.uid,
                    gid: user.gid,
                    groups: groups.into_iter().chain([user.gid]).collect(),
                    confined: false,
                    home: Some(user.home),
                    name: Some(user.name),
                }
            }
            // A number without an account is also used as the group's number.
            (None, Ok(number)) => ProcessCredentials {
                uid: Uid::from_raw(number),
                gid: Gid::from_raw(number),
                groups: vec![Gid::from_raw(number)],
                confined: false,
                home: Some("/".into()),
                name: None,
            },
            (None, Err(_)) => return Err(missing("user", wanted)),
        },
    };
    if let Some(wanted) = &account.group {
        let number = wanted.parse().map(Gid::from_raw).ok();
        let named = || root::groups(root, Some(wanted), None).first().copied();
        let gid = number.or_else(named).ok_or_else(|| missing("group", wanted))?;
        credentials.gid = gid;
        if !credentials.groups.contains(&gid) {
            credentials.groups.push(gid);
        }
    }
    Ok(credentials)
}

/// Finds a user by name or number. A number is valid even without an account.
fn find_user(wanted: &str) -> Result<(Uid, Option<User>), String> {
    let failed = |errno| format!("cannot look up the user {wanted:?}: {errno}");
    if let Ok(number) = wanted.parse() {
        let uid = Uid::from_raw(number);
        return Ok((uid, User::from_uid(uid).map_err(failed)?));
    }
    let missing = || format!("this machine has no user {wanted:?}: create it, or write a number");
    let user = User::from_name(wanted).map_err(failed)?.ok_or_else(missing)?;
    Ok((user.uid, Some(user)))
}

/// Finds a group by name or number.
fn find_group(wanted: &str) -> Result<Gid, String> {
    if let Ok(number) = wanted.parse() {
        return Ok(Gid::from_raw(number));
    }
    let group = Group::from_name(wanted)
        .map_err(|errno| format!("cannot look up the group {wanted:?}: {errno}"))?;
    let missing = || format!("this machine has no group {wanted:?}: create it, or write a number");
    Ok(group.ok_or_else(missing)?.gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        let account = |user: Option<&str>, group: Option<&str>| {
            let text = |text: Option<&str>| text.map(str::to_owned);
            of(&RunAs { user: text(user), group: text(group), root: None })
        };
        assert_eq!(account(None, None), Ok(ProcessCredentials::invoking()));
        let root = account(Some("root"), None).unwrap();
        assert_eq!((root.uid(), root.gid.as_raw()), (0, 0));
        let unknown = account(Some("424242"), Some("0")).unwrap();
        assert_eq!((unknown.uid(), unknown.gid.as_raw()), (424_242, 0));
        assert_eq!(
            account(Some("no-such-user"), None),
            Err((
                "user",
                "this machine has no user \"no-such-user\": create it, or write a number"
                    .to_owned()
            ))
        );
        assert_eq!(account(None, Some("no-such-group")).unwrap_err().0, "group");
    }
}
