//! `/etc/passwd` and `/etc/group` of an image (CRI-215). Pure: text in, answers out. Lines that
//! make no sense are passed over, as the C library does.

/// A line of passwd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: String,
}

fn accounts(passwd: &str) -> impl Iterator<Item = Account> + '_ {
    passwd.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields
            .next()
            .filter(|n| !n.is_empty() && !n.starts_with('#'))?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).unwrap_or_default();
        Some(Account {
            name: name.to_owned(),
            uid,
            gid,
            home: home.to_owned(),
        })
    })
}

/// The first account of this name.
pub fn by_name(passwd: &str, name: &str) -> Option<Account> {
    accounts(passwd).find(|a| a.name == name)
}

/// The first account with this number.
pub fn by_uid(passwd: &str, uid: u32) -> Option<Account> {
    accounts(passwd).find(|a| a.uid == uid)
}

/// Name, number and members of each group.
fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields
            .next()
            .filter(|n| !n.is_empty() && !n.starts_with('#'))?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some((name, gid, fields.next().unwrap_or_default()))
    })
}

/// The number of the first group of this name.
pub fn group_id(group: &str, name: &str) -> Option<u32> {
    groups(group)
        .find(|(n, ..)| *n == name)
        .map(|(_, gid, _)| gid)
}

/// Groups that list `user` as a member, in the file's order, each once.
pub fn groups_of(group: &str, user: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for (_, gid, members) in groups(group) {
        if members.split(',').any(|m| m.trim() == user) && !found.contains(&gid) {
            found.push(gid);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# note\nbroken:x\n\
        www-data:x:33:34:www:/var/www:/bin/false\nwww-data:x:99:99::/:\nshort:x:7:8\n";
    const GROUP: &str =
        "root:x:0:\nwheel:x:10:root,admin\nextra:x:50000: admin ,x\nbad:x:y:admin\n";

    #[test]
    fn accounts_are_found_by_name_and_number_and_the_first_wins() {
        let www = by_name(PASSWD, "www-data").unwrap();
        assert_eq!((www.uid, www.gid, &*www.home), (33, 34, "/var/www"));
        assert_eq!(by_uid(PASSWD, 0).unwrap().home, "/root");
        assert_eq!(by_uid(PASSWD, 7).unwrap().home, "");
        assert_eq!(by_name(PASSWD, "broken"), None);
        assert_eq!(by_name(PASSWD, ""), None);
    }

    #[test]
    fn a_member_has_the_groups_that_list_it() {
        assert_eq!(groups_of(GROUP, "admin"), [10, 50000]);
        assert_eq!(groups_of(GROUP, "nobody"), Vec::<u32>::new());
        assert_eq!(group_id(GROUP, "wheel"), Some(10));
        assert_eq!(group_id(GROUP, "bad"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "\\PC{0,200}") {
            let _ = (by_name(&text, "a"), by_uid(&text, 1), groups_of(&text, "a"), group_id(&text, "a"));
        }
    }
}
