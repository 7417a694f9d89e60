//! Resolves the user of a container's first process (CRI-215, CRI-216) from passwd and group texts.

use std::collections::BTreeSet;

use super::error::SpecError;

/// The requested user; numbers as CRI sends them.
#[derive(Clone, Debug, Default)]
pub struct UserRequest<'a> {
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    /// Empty means absent.
    pub run_as_username: &'a str,
    pub supplemental_groups: &'a [i64],
    /// Strict: only the listed groups. Otherwise those of `/etc/group` are added.
    pub strict_groups: bool,
    /// The image's `User`: name or uid, optionally `:` and a group or gid. Empty means root.
    pub image_user: &'a str,
    /// Text of `/etc/passwd` of the container's root, if any.
    pub passwd: Option<&'a str>,
    /// Text of `/etc/group` of the container's root, if any.
    pub group: Option<&'a str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedUser {
    pub uid: u32,
    pub gid: u32,
    /// Ascending, without duplicates, including the primary gid (CRI-216).
    pub supplemental_groups: Vec<u32>,
    /// Login name, if passwd has one.
    pub name: Option<String>,
    /// Home directory, if passwd has one.
    pub home: Option<String>,
}

/// Longer texts are cut off at a line end: an image is not trusted.
const MAX_TEXT: usize = 4 * 1024 * 1024;

/// Resolves a request. The image's user applies only if neither uid nor name is requested.
pub fn resolve(request: &UserRequest<'_>) -> Result<ResolvedUser, SpecError> {
    const CONTEXT: &str = "linux.security_context";
    let passwd = Passwd(bounded(request.passwd));
    let groups = Groups(bounded(request.group));
    let by_name = !request.run_as_username.is_empty();
    if request.run_as_group.is_some() && request.run_as_user.is_none() && !by_name {
        return Err(SpecError::invalid(
            format!("{CONTEXT}.run_as_group"),
            "needs run_as_user or run_as_username",
        ));
    }
    let image_user_parts = request.image_user.split_once(':');
    let (image_who, image_group) = image_user_parts.unwrap_or((request.image_user, ""));
    let mut image_group_counts = true;
    let (uid, entry) = match (request.run_as_user, by_name) {
        (Some(_), true) => {
            return Err(SpecError::invalid(
                format!("{CONTEXT}.run_as_username"),
                "only one of run_as_user and run_as_username may be given",
            ));
        }
        (Some(uid), false) => {
            let uid = id(uid, || format!("{CONTEXT}.run_as_user"))?;
            image_group_counts = image_who == uid.to_string();
            (uid, passwd.by_uid(uid))
        }
        (None, true) => {
            let name = request.run_as_username;
            let entry = passwd.by_name(name).ok_or_else(|| {
                SpecError::not_found(
                    format!("{CONTEXT}.run_as_username"),
                    format!("{name:?} is not in the image's /etc/passwd"),
                )
            })?;
            // The kubelet copies the image's own user name into this field.
            image_group_counts = image_who == name;
            (entry.uid, Some(entry))
        }
        (None, false) => image_user(&passwd, image_who)?,
    };
    let gid = if let Some(gid) = request.run_as_group {
        id(gid, || format!("{CONTEXT}.run_as_group"))?
    } else if image_group_counts && !image_group.is_empty() {
        image_gid(&groups, image_group)?
    } else {
        entry.as_ref().map_or(0, |e| e.gid)
    };
    let mut supplemental = BTreeSet::from([gid]);
    for listed in request.supplemental_groups {
        supplemental.insert(id(*listed, || format!("{CONTEXT}.supplemental_groups"))?);
    }
    if !request.strict_groups
        && let Some(entry) = &entry
    {
        supplemental.extend(groups.of_member(entry.name));
    }
    Ok(ResolvedUser {
        uid,
        gid,
        supplemental_groups: supplemental.into_iter().collect(),
        name: entry.as_ref().map(|e| e.name.to_owned()),
        home: entry
            .filter(|e| e.home.starts_with('/'))
            .map(|e| e.home.to_owned()),
    })
}

fn image_user<'a>(
    passwd: &Passwd<'a>,
    who: &str,
) -> Result<(u32, Option<PasswdEntry<'a>>), SpecError> {
    if who.is_empty() {
        return Ok((0, passwd.by_uid(0)));
    }
    let unknown = || {
        SpecError::not_found(
            "image user",
            format!("{who:?} is not in the image's /etc/passwd"),
        )
    };
    // A number is an id, also where an entry has it as its name: that entry may be root's.
    if is_number(who) {
        let uid = parse_id(who).ok_or_else(unknown)?;
        return Ok((uid, passwd.by_uid(uid)));
    }
    let entry = passwd.by_name(who).ok_or_else(unknown)?;
    Ok((entry.uid, Some(entry)))
}

fn image_gid(groups: &Groups<'_>, group: &str) -> Result<u32, SpecError> {
    let gid = if is_number(group) {
        parse_id(group)
    } else {
        groups.by_name(group)
    };
    gid.ok_or_else(|| {
        SpecError::not_found(
            "image user",
            format!("group {group:?} is not in the image's /etc/group"),
        )
    })
}

fn is_number(text: &str) -> bool {
    text.parse::<i128>().is_ok()
}

/// The highest value means "no change" to the kernel and is invalid.
fn parse_id(text: &str) -> Option<u32> {
    text.parse::<u32>().ok().filter(|id| *id != u32::MAX)
}

/// The highest value means "no change" to the kernel and is invalid.
fn id(value: i64, field: impl Fn() -> String) -> Result<u32, SpecError> {
    u32::try_from(value)
        .ok()
        .filter(|id| *id != u32::MAX)
        .ok_or_else(|| SpecError::invalid(field(), format!("invalid id {value}")))
}

fn bounded(text: Option<&str>) -> &str {
    let text = text.unwrap_or_default();
    if text.len() <= MAX_TEXT {
        return text;
    }
    let mut end = MAX_TEXT;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let end = text[..end].rfind('\n').unwrap_or(0);
    &text[..end]
}

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

/// Lines `name:password:uid:gid:gecos:home:shell`; invalid lines are skipped.
struct Passwd<'a>(&'a str);

impl<'a> Passwd<'a> {
    fn entries(&self) -> impl Iterator<Item = PasswdEntry<'a>> {
        self.0.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let uid = parse_id(fields.nth(1)?)?;
            let gid = parse_id(fields.next()?)?;
            let home = fields.nth(1).unwrap_or_default();
            Some(PasswdEntry {
                name,
                uid,
                gid,
                home,
            })
        })
    }

    fn by_name(&self, name: &str) -> Option<PasswdEntry<'a>> {
        self.entries().find(|e| e.name == name)
    }

    fn by_uid(&self, uid: u32) -> Option<PasswdEntry<'a>> {
        self.entries().find(|e| e.uid == uid)
    }
}

/// Lines `name:password:gid:member,member`; invalid lines are skipped.
struct Groups<'a>(&'a str);

impl<'a> Groups<'a> {
    fn entries(&self) -> impl Iterator<Item = (&'a str, u32, &'a str)> {
        self.0.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let gid = parse_id(fields.nth(1)?)?;
            Some((name, gid, fields.next().unwrap_or_default()))
        })
    }

    fn by_name(&self, name: &str) -> Option<u32> {
        self.entries()
            .find(|(n, ..)| *n == name)
            .map(|(_, gid, _)| gid)
    }

    fn of_member(&self, member: &str) -> impl Iterator<Item = u32> {
        self.entries()
            .filter(move |(.., members)| members.split(',').any(|m| m.trim() == member))
            .map(|(_, gid, _)| gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken line\nweb:x:1000:1000::/srv:/bin/sh\nnohome:x:7:8\n";
    const GROUP: &str = "root:x:0:\nweb:x:1000:\nextra:x:50000:web,other\nstaff:x:60000:other\n";

    fn request() -> UserRequest<'static> {
        UserRequest {
            passwd: Some(PASSWD),
            group: Some(GROUP),
            ..UserRequest::default()
        }
    }

    fn ids(request: &UserRequest<'_>) -> (u32, u32, Vec<u32>) {
        let user = resolve(request).expect("valid");
        (user.uid, user.gid, user.supplemental_groups)
    }

    #[test]
    fn nobody_asked_for_is_root() {
        assert_eq!(ids(&request()), (0, 0, vec![0]));
        assert_eq!(ids(&UserRequest::default()), (0, 0, vec![0]));
    }

    #[test]
    fn merged_groups_contain_those_of_the_image_and_the_primary_one() {
        let mut request = UserRequest {
            image_user: "1000",
            supplemental_groups: &[1234],
            ..request()
        };
        assert_eq!(ids(&request), (1000, 1000, vec![1000, 1234, 50000]));
        request.strict_groups = true;
        assert_eq!(ids(&request), (1000, 1000, vec![1000, 1234]));
    }

    #[test]
    fn a_group_without_a_user_is_refused() {
        let request = UserRequest {
            run_as_group: Some(5),
            ..request()
        };
        assert!(
            resolve(&request)
                .expect_err("refused")
                .to_string()
                .contains("run_as_group")
        );
    }

    #[test]
    fn a_user_name_must_be_in_passwd() {
        let mut request = UserRequest {
            run_as_username: "web",
            ..request()
        };
        assert_eq!(ids(&request).0, 1000);
        assert_eq!(
            resolve(&request).expect("valid").home.as_deref(),
            Some("/srv")
        );
        for name in ["nobody", "1000"] {
            request.run_as_username = name;
            assert!(resolve(&request).is_err(), "{name}");
        }
        request.run_as_username = "web";
        request.passwd = None;
        assert!(resolve(&request).is_err());
    }

    #[test]
    fn the_primary_group_is_the_one_asked_for_then_the_images_then_passwds_then_root() {
        let mut request = UserRequest {
            run_as_user: Some(1000),
            run_as_group: Some(77),
            image_user: "web:staff",
            ..request()
        };
        assert_eq!(ids(&request).1, 77);
        request.run_as_group = None;
        assert_eq!(
            ids(&request).1,
            1000,
            "another spelling of the user: passwd decides"
        );
        request.run_as_user = None;
        assert_eq!(ids(&request).1, 60000);
        request.image_user = "web";
        assert_eq!(ids(&request).1, 1000);
        request.image_user = "4242";
        assert_eq!(ids(&request), (4242, 0, vec![0]));
        request.image_user = "4242:4343";
        assert_eq!(ids(&request).1, 4343);
    }

    #[test]
    fn a_number_is_an_id_and_never_a_name() {
        let mut request = UserRequest {
            image_user: "1000",
            passwd: Some("1000:x:0:0::/root:/bin/sh\nweb:x:1000:1001::/srv:/bin/sh\n"),
            group: Some("60000:x:0:\nstaff:x:60000:\n"),
            ..UserRequest::default()
        };
        assert_eq!(ids(&request), (1000, 1001, vec![1001]));
        assert_eq!(
            resolve(&request).expect("valid").name.as_deref(),
            Some("web")
        );
        request.image_user = "web:60000";
        assert_eq!(ids(&request).1, 60000);
        request.image_user = "4242";
        assert_eq!(ids(&request), (4242, 0, vec![0]));
    }

    #[test]
    fn entries_with_an_invalid_id_are_skipped() {
        for line in [
            "m:x:4294967295:1::/:",
            "m:x:1:4294967295::/:",
            "m:x:-1:1::/:",
        ] {
            let request = UserRequest {
                image_user: "m",
                passwd: Some(line),
                ..UserRequest::default()
            };
            assert!(resolve(&request).is_err(), "{line}");
        }
        let request = UserRequest {
            image_user: "web:most",
            group: Some("most:x:4294967295:web\nextra:x:50000:web\n"),
            passwd: Some(PASSWD),
            ..UserRequest::default()
        };
        assert!(resolve(&request).is_err());
        let request = UserRequest {
            image_user: "web",
            ..request
        };
        assert_eq!(ids(&request).2, [1000, 50000]);
    }

    #[test]
    fn the_kubelets_copy_of_the_images_user_name_keeps_the_images_group() {
        let request = UserRequest {
            run_as_username: "web",
            image_user: "web:staff",
            ..request()
        };
        assert_eq!(ids(&request).1, 60000);
    }

    #[test]
    fn what_the_image_names_must_exist() {
        for image_user in ["ghost", "web:ghosts", "-1", "4294967295", "99999999999"] {
            let request = UserRequest {
                image_user,
                ..request()
            };
            assert!(resolve(&request).is_err(), "{image_user}");
        }
    }

    #[test]
    fn ids_out_of_range_are_refused() {
        for value in [-1, i64::from(u32::MAX), i64::MAX] {
            let request = UserRequest {
                run_as_user: Some(value),
                ..request()
            };
            assert!(resolve(&request).is_err(), "{value}");
        }
        let request = UserRequest {
            supplemental_groups: &[-5],
            ..request()
        };
        assert!(resolve(&request).is_err());
    }

    #[test]
    fn uid_and_name_together_are_refused() {
        let request = UserRequest {
            run_as_user: Some(1),
            run_as_username: "web",
            ..request()
        };
        assert!(resolve(&request).is_err());
    }
}
