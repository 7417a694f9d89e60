//! Compares two texts of JSON line by line. A comma at the end of a line is ignored: a new entry
//! adds a comma to the line above, which would then count as changed. Pure.

/// One line of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// In both; the text is that of the new one.
    Both(&'a str),
    Old(&'a str),
    New(&'a str),
}

/// The shortest edit from `old` to `new`: removals before additions.
pub(super) fn lines<'a>(old: &'a str, new: &'a str) -> Vec<Line<'a>> {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = |(a, b): &(&&str, &&str)| is_same(a, b);
    let head = old.iter().zip(&new).take_while(same).count();
    let (left, right) = (&old[head..], &new[head..]);
    let tail = left
        .iter()
        .rev()
        .zip(right.iter().rev())
        .take_while(same)
        .count();
    let (left, right) = (&left[..left.len() - tail], &right[..right.len() - tail]);
    let mut all: Vec<_> = new[..head].iter().map(|line| Line::Both(line)).collect();
    between(left, right, &mut all);
    all.extend(new[new.len() - tail..].iter().map(|line| Line::Both(line)));
    all
}

fn is_same(a: &str, b: &str) -> bool {
    let entry = |line: &str| line.strip_suffix(',').unwrap_or(line).len();
    a[..entry(a)] == b[..entry(b)]
}

/// Uses the longest common subsequence; a spec has some hundred lines.
fn between<'a>(old: &[&'a str], new: &[&'a str], all: &mut Vec<Line<'a>>) {
    let width = new.len() + 1;
    // For the remainders from each pair of positions.
    let mut longest = vec![0u32; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            longest[i * width + j] = if is_same(old[i], new[j]) {
                longest[(i + 1) * width + j + 1] + 1
            } else {
                longest[(i + 1) * width + j].max(longest[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && is_same(old[i], new[j]) {
            all.push(Line::Both(new[j]));
            (i, j) = (i + 1, j + 1);
        } else if i < old.len()
            && (j == new.len() || longest[(i + 1) * width + j] >= longest[i * width + j + 1])
        {
            all.push(Line::Old(old[i]));
            i += 1;
        } else {
            all.push(Line::New(new[j]));
            j += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Line::*, *};

    #[test]
    fn what_goes_and_comes_stands_between_what_stays() {
        assert_eq!(
            lines("a\nb\nc\nd", "a\nx\nc\nd\ne"),
            [
                Both("a"),
                Old("b"),
                New("x"),
                Both("c"),
                Both("d"),
                New("e")
            ]
        );
        assert_eq!(lines("", "a"), [New("a")]);
        assert_eq!(lines("a", ""), [Old("a")]);
        assert_eq!(lines("a\na", "a"), [Both("a"), Old("a")]);
        assert_eq!(lines("", ""), []);
    }

    #[test]
    fn an_entry_before_a_new_one_stays_though_it_gets_a_comma() {
        assert_eq!(
            lines("[\n\"a\"\n]", "[\n\"a\",\n\"b\"\n]"),
            [Both("["), Both("\"a\","), New("\"b\""), Both("]")]
        );
        assert_eq!(
            lines("\"a\",\n\"b\"", "\"a\""),
            [Both("\"a\""), Old("\"b\"")]
        );
    }

    proptest::proptest! {
        #[test]
        fn both_texts_come_out_of_it(old in "([ab]\n){0,9}", new in "([ab]\n){0,9}") {
            let all = lines(&old, &new);
            let left = all.iter().filter_map(|l| match l { Both(t) | Old(t) => Some(*t), New(_) => None });
            proptest::prop_assert_eq!(left.collect::<Vec<_>>(), old.lines().collect::<Vec<_>>());
            let right = all.iter().filter_map(|l| match l { Both(t) | New(t) => Some(*t), Old(_) => None });
            proptest::prop_assert_eq!(right.collect::<Vec<_>>(), new.lines().collect::<Vec<_>>());
        }
    }
}
