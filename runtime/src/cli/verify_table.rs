//! The output of `cairn image verify`. Pure: the daemon's answers in, text out.

use proto_cairn::v1::{ImageDamage, VerifiedImage};
use serde_json::{Value, json};

use super::text::{aligned, clean, line, short_id};

const HEAD: [&str; 5] = ["IMAGE", "ID", "LAYERS", "ENTRIES", "STATE"];

/// The table for people: a line per image, and one per damage below it.
pub(super) fn table(images: &[VerifiedImage]) -> String {
    if images.is_empty() {
        return "there is no image\n".to_owned();
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(images.iter().map(|image| {
        [
            clean(image.names.first().map_or("-", String::as_str)),
            short_id(&image.id).to_owned(),
            image.layers.to_string(),
            image.entries.to_string(),
            state(image),
        ]
    }));
    let rows = aligned(&rows);
    let mut out = line(&rows[0]);
    for (row, image) in rows[1..].iter().zip(images) {
        out += &line(row);
        out.extend(image.damages.iter().map(damage));
        if image.more_damages > 0 {
            out += &format!("  and {} more\n", image.more_damages);
        }
    }
    out
}

fn state(image: &VerifiedImage) -> String {
    match (image.damages.is_empty(), image.unverifiable) {
        (false, _) if image.set_aside => "damaged, set aside".to_owned(),
        (false, _) => "damaged".to_owned(),
        (true, 0) => "sound".to_owned(),
        (true, n) if n == image.layers => "not verifiable".to_owned(),
        (true, 1) => "sound but for 1 layer that is not verifiable".to_owned(),
        (true, n) => format!("sound but for {n} layers that are not verifiable"),
    }
}

fn damage(damage: &ImageDamage) -> String {
    let place = match (damage.layer.as_str(), damage.path.as_str()) {
        ("", _) => return format!("  {}\n", clean(&damage.problem)),
        (layer, "") => format!("layer {}", short_id(layer)),
        (layer, path) => format!("layer {}, /{path}", short_id(layer)),
    };
    format!("  {}: {}\n", clean(&place), clean(&damage.problem))
}

/// The advice for standard error, one line each.
pub(super) fn advice(images: &[VerifiedImage]) -> Vec<String> {
    let mut lines = Vec::new();
    for image in images {
        let name = match image.names.first() {
            Some(name) => clean(name),
            None => short_id(&image.id).to_owned(),
        };
        if !image.not_set_aside.is_empty() {
            lines.push(format!("{name} was left: {}", clean(&image.not_set_aside)));
        } else if image.set_aside {
            let names = if image.names.is_empty() {
                "its name (the record that had it cannot be read)".to_owned()
            } else {
                clean(&image.names.join(" and "))
            };
            lines.push(format!(
                "{name} is set aside: `cairn image pull` of {names} fetches what is damaged; an archive can be imported again"
            ));
            lines.extend(image.others_set_aside.iter().map(|other| {
                let other = clean(other);
                format!("{other} has the same layer, and is set aside with {name}: `cairn image pull {other}`")
            }));
        } else if !image.damages.is_empty() {
            lines.push(format!(
                "{name} is damaged: `cairn image verify --repair {name}`, then `cairn image pull {name}` (or import it again)"
            ));
        }
    }
    if images.iter().any(|image| image.unverifiable > 0) {
        lines.push(
            "layers that are not verifiable were unpacked by an earlier cairn, or are too large: `cairn image rm` and `cairn image \
             pull` unpack them anew"
                .to_owned(),
        );
    }
    lines
}

/// The JSON form.
pub(super) fn json(images: &[VerifiedImage]) -> Value {
    let images: Vec<Value> = images.iter().map(one).collect();
    json!({ "images": images })
}

fn one(image: &VerifiedImage) -> Value {
    let damages = image.damages.iter().map(|damage| {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        json!({ "layer": given(&damage.layer), "path": given(&damage.path), "problem": damage.problem })
    });
    json!({
        "id": image.id,
        "names": image.names,
        "sound": image.damages.is_empty() && image.unverifiable == 0,
        "layers": image.layers,
        "unverifiable_layers": image.unverifiable,
        "entries": image.entries,
        "damages": damages.collect::<Vec<_>>(),
        "more_damages": image.more_damages,
        "set_aside": image.set_aside,
        "not_set_aside": image.not_set_aside,
        "others_set_aside": image.others_set_aside,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, id: &str) -> VerifiedImage {
        VerifiedImage {
            id: format!("sha256:{}", id.repeat(64)),
            names: vec![name.to_owned()],
            layers: 2,
            entries: 42,
            ..VerifiedImage::default()
        }
    }

    fn damaged(layer: &str, path: &str, problem: &str) -> ImageDamage {
        ImageDamage {
            layer: layer.to_owned(),
            path: path.to_owned(),
            problem: problem.to_owned(),
        }
    }

    #[test]
    fn each_image_has_a_line_and_each_damage_its_place() {
        let mut bad = image("r/bad:1", "b");
        bad.damages = vec![
            damaged("sha256:1234567890abcdef", "usr/a\u{1b}[2J", "is missing"),
            damaged("sha256:1234567890abcdef", "", "is missing"),
            damaged("", "", "its record: EOF"),
        ];
        bad.more_damages = 7;
        let mut old = image("r/old:1", "c");
        old.unverifiable = 2;
        let mut half = image("r/half:1", "d");
        half.unverifiable = 1;
        let all = [image("r/good:1", "a"), bad, old, half];
        assert_eq!(
            table(&all),
            "\
IMAGE     ID             LAYERS  ENTRIES  STATE
r/good:1  aaaaaaaaaaaaa  2       42       sound
r/bad:1   bbbbbbbbbbbbb  2       42       damaged
  layer 1234567890abc, /usr/a [2J: is missing
  layer 1234567890abc: is missing
  its record: EOF
  and 7 more
r/old:1   ccccccccccccc  2       42       not verifiable
r/half:1  ddddddddddddd  2       42       sound but for 1 layer that is not verifiable
"
        );
        assert_eq!(table(&[]), "there is no image\n");
        let status_text = advice(&all);
        assert_eq!(status_text.len(), 2, "{status_text:?}");
        assert!(
            status_text[0]
                .starts_with("r/bad:1 is damaged: `cairn image verify --repair r/bad:1`, then")
        );
        assert!(status_text[1].starts_with("layers that are not verifiable"));
        assert!(advice(&all[..1]).is_empty());
    }

    #[test]
    fn what_was_set_aside_is_to_be_pulled_and_what_was_not_has_its_reason() {
        let mut aside = image("r/a:1", "a");
        aside.names.push("r/a:2".to_owned());
        aside.damages = vec![damaged("sha256:12", "x", "is missing")];
        aside.set_aside = true;
        let mut left = image("r/b:1", "b");
        left.damages.clone_from(&aside.damages);
        left.not_set_aside = "in use by container p/c (1)".to_owned();
        let status_text = advice(&[aside.clone(), left]);
        assert!(
            status_text[0].contains("`cairn image pull` of r/a:1 and r/a:2 fetches"),
            "{status_text:?}"
        );
        assert_eq!(
            status_text[1],
            "r/b:1 was left: in use by container p/c (1)"
        );
        assert!(table(&[aside]).contains("damaged, set aside"));
    }
}
