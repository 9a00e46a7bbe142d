//! The three forms of a listing, as iproute2 writes them.

use std::fmt::Write;

use super::OutputOptions;

/// A value of a field.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Number(u64),
    /// On a line of its own in text.
    Count(u64),
    /// A memory key: hexadecimal, in JSON without `0x` and in quotes.
    Key(u32),
    Text(String),
    /// Not in quotes in JSON, `on` and `off` in text.
    Switch(bool),
    /// Ascending numbers, shown as ranges: a list of texts in JSON.
    Ranges(Vec<u32>),
    /// A list: on a line of its own in text.
    List(Vec<&'static str>),
}

/// A field of one entry.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) value: Value,
    /// Whether it appears in text; the leading fields are in the head of the line instead.
    pub(super) in_text: bool,
}

/// One line of text, one object of JSON.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The beginning of the line, such as `link rxe0/1 ` or `4: rxe0: `.
    pub(super) head: String,
    pub(super) fields: Vec<Field>,
}

/// All entries in the form that was asked for.
pub(super) fn render(entries: &[Entry], options: OutputOptions) -> String {
    if !options.json {
        return entries.iter().map(text).collect();
    }
    let layout = if options.pretty { &PRETTY } else { &COMPACT };
    let objects: Vec<String> = entries.iter().map(|entry| object(entry, layout)).collect();
    if objects.is_empty() {
        return format!("[{}]\n", layout.open_array);
    }
    // the separator stands at the beginning of the next line
    let body = objects.join(",");
    format!("[{}{body}{}]\n", layout.open_array, layout.close_array)
}

fn text(entry: &Entry) -> String {
    let mut line = entry.head.clone();
    let mut below = String::new();
    for Field { name, value, .. } in entry.fields.iter().filter(|field| field.in_text) {
        // writing to a String cannot fail
        let _ = match value {
            Value::Number(number) => write!(line, "{name} {number} "),
            Value::Count(count) => write!(below, "\n    {name} {count} "),
            Value::Key(key) => write!(line, "{name} {key:#x} "),
            Value::Text(text) => write!(line, "{name} {text} "),
            Value::Ranges(numbers) => write!(line, "{name} {} ", ranges(numbers).join(",")),
            Value::Switch(on) => write!(line, "{name} {} ", if *on { "on" } else { "off" }),
            Value::List(items) => write!(below, "\n    {name}: <{}>", items.join(", ")),
        };
    }
    line + &below + "\n"
}

/// The white space of a JSON form.
struct Layout {
    open_array: &'static str,
    close_array: &'static str,
    before_field: &'static str,
    after_colon: &'static str,
    close_object: &'static str,
    list: (&'static str, &'static str),
}

const COMPACT: Layout = Layout {
    open_array: "",
    close_array: "",
    before_field: "",
    after_colon: "",
    close_object: "}\n",
    list: ("[", "]"),
};

const PRETTY: Layout = Layout {
    open_array: " ",
    close_array: " ",
    before_field: "\n        ",
    after_colon: " ",
    close_object: "\n    }\n",
    list: ("[ ", " ]"),
};

fn object(entry: &Entry, layout: &Layout) -> String {
    let fields: Vec<String> = entry
        .fields
        .iter()
        .map(|Field { name, value, .. }| {
            let value = match value {
                Value::Number(number) | Value::Count(number) => number.to_string(),
                Value::Key(key) => quoted(&format!("{key:x}")),
                Value::Text(text) => quoted(text),
                Value::Switch(on) => on.to_string(),
                Value::Ranges(numbers) => list(&ranges(numbers), layout),
                Value::List(items) => list(items, layout),
            };
            format!(
                "{}\"{name}\":{}{value}",
                layout.before_field, layout.after_colon
            )
        })
        .collect();
    format!("{{{}{}", fields.join(","), layout.close_object)
}

fn list(items: &[impl AsRef<str>], layout: &Layout) -> String {
    let items: Vec<String> = items.iter().map(|item| quoted(item.as_ref())).collect();
    format!("{}{}{}", layout.list.0, items.join(","), layout.list.1)
}

/// Ascending numbers as `17` and `19-22`.
fn ranges(numbers: &[u32]) -> Vec<String> {
    let follow = |last: &u32, next: &u32| last.checked_add(1) == Some(*next);
    let range = |range: &[u32]| match range {
        [first, .., last] => format!("{first}-{last}"),
        numbers => numbers.iter().map(u32::to_string).collect(),
    };
    numbers.chunk_by(follow).map(range).collect()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
