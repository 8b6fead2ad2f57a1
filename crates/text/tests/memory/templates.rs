//! What a hostile template allocates.

use loquat_text::{ChatInput, ChatTemplate};

use crate::{peak_bytes, run_alone};

/// Thrice the 256 MiB that a rendering may write: a text is held while a larger copy of it is made.
const MAX_PEAK: usize = 768 << 20;

#[test]
fn hostile_templates_allocate_within_the_budget() {
    let _alone = run_alone();
    let long = "{% set a = 'x' * 20000000 %}";
    let cases = [
        "{{ ''.join([a] * 1000) }}",
        "{{ a.join(['', ''] * 1000) }}",
        "{{ [a] * 1000 | join(a) }}",
        "{{ ([a] * 1000) | join(a) }}",
        "{{ a | list | length }}",
        "{% for c in a %}{% endfor %}",
        "{{ ('a ' * 20000000).split() | length }}",
        "{{ ('a ' * 20000000).rsplit('a') | length }}",
        "{{ ('\n' * 60000000).splitlines() | length }}",
        "{{ '\n' * 60000000 | indent }}",
        "{{ ('\n' * 60000000) | indent }}",
        "{{ a[::-1][::-1][::-1] | length }}",
        "{{ [a] * 1000 }}",
        "{{ [a] * 1000 | tojson }}",
        "{{ ([a] * 1000) | tojson }}",
        "{{ ([[[[[1]]]]] * 1000) | tojson(indent='y' * 1000000) }}",
        "{{ ([1] * 1000) | tojson(separators=[a, a]) }}",
        "{{ ('\\u200b' * 60000000) | string ~ ['\\u200b' * 60000000] }}",
        "{{ ('<' * 60000000) | escape }}",
        "{{ ('<' * 60000000) | urlencode }}",
        "{{ {'k': '<' * 60000000} | xmlattr }}",
        "{{ a.center(99999999, '\\U0001f600') }}",
        "{{ ('\\u0390' * 40000000) | upper }}",
        "{{ '%s' * 1000 % ((a,) * 1000) }}",
        "{{ ('%s' * 1000) % ((a,) * 1000) }}",
        "{{ ('{0}' * 1000).format(a) }}",
        "{{ ('{:65000}' * 100000).format(*([1] * 100000)) }}",
        "{{ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a }}",
        "{{ ('x.' * 20000000) and [] | map(attribute='x.' * 20000000) }}",
        "{{ [{}] | map(attribute='x.' * 20000000) | list }}",
        "{{ ([1] * 1000) | map('format', *([a] * 5000)) | list }}",
        "{{ range(99999) | batch(1) | list }}{{ [1] | slice(10000000) | list }}",
        "{{ dict.fromkeys(a) }}",
        "{{ dict(a=a).items() | list * 1000 }}",
        "{{ a | int }}{{ a | float }}{{ a | truncate(19999990) }}",
        "{% set ns = namespace(v=[]) %}{% for i in range(99999) %}{% set ns.v = [ns.v, '']|last ~ a %}{% endfor %}",
        "{% set ns = namespace(v=[]) %}{% for i in range(99999) %}{% set ns.v = ns.v + [a.strip] %}{% endfor %}",
    ];
    for case in cases {
        let template = ChatTemplate::new(&format!("{long}{case}")).expect(case);
        // Whether it renders does not matter here.
        let peak = peak_bytes(|| drop(template.render(&ChatInput::default())));
        assert!(peak <= MAX_PEAK, "{case}: {} MiB", peak >> 20);
    }
}
