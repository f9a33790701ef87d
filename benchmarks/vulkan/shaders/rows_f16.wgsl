// Rows of float16, two numbers in a word, padded with zeros to whole units of eight.
fn weights(row: u32, unit: u32) -> array<vec4f, 2> {
    let at = row * ROW_WORDS + unit * 4u;
    return array<vec4f, 2>(
        vec4f(unpack2x16float(stored[at]), unpack2x16float(stored[at + 1u])),
        vec4f(unpack2x16float(stored[at + 2u]), unpack2x16float(stored[at + 3u])),
    );
}
