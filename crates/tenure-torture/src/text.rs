//! Text in the page and in the drawings.

/// Average width of a character of a label, measured with DejaVu Sans, which is a wide font.
const CHARACTER: f64 = 6.8;

/// Escapes the text, so that HTML and SVG show it and read no markup in it.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // XML does not allow these.
            other if other.is_control() || matches!(other, '\u{fffe}' | '\u{ffff}') => {
                out.push('\u{fffd}');
            }
            other => out.push(other),
        }
    }
    out
}

/// The width in pixels. Characters beyond Latin count as the widest ones.
pub(crate) fn text_width(text: &str) -> f64 {
    let widths = text
        .chars()
        .map(|sign| if sign < '\u{300}' { 1.0 } else { 2.2 });
    widths.sum::<f64>() * CHARACTER
}

/// A name, cut to the length that fits into a tooltip.
pub(crate) fn shortened(name: &str) -> String {
    const MAX_CHARACTERS: usize = 60;
    match name.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
