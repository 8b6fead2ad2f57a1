//! Templates from strangers: none hangs, fills the memory or overflows the stack.

use std::time::{Duration, Instant};

use loquat_text::{ChatInput, ChatTemplate};

/// Threads of servers have two megabytes; half of that must do.
const STACK: usize = 1 << 20;
/// Far above the time of any of these, far below their time without limits.
const PATIENCE: Duration = Duration::from_secs(600);

fn render(template: String) -> Result<String, String> {
    let run = move || {
        ChatTemplate::new(&template)
            .and_then(|template| template.render(&ChatInput::default()))
            .map_err(|error| error.to_string())
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(run);
    thread.expect("a thread").join().expect("no panic")
}

fn nested(open: &str, inside: &str, close: &str, times: usize) -> String {
    format!("{}{inside}{}", open.repeat(times), close.repeat(times))
}

/// A loop that adds its last result to the next one.
fn wrapped(start: &str, next: &str) -> String {
    format!(
        "{{% set ns = namespace(v={start}) %}}{{% for i in range(50000) %}}\
         {{% set ns.v = {next} %}}{{% endfor %}}done"
    )
}

#[test]
fn deep_nesting_is_refused() {
    let cases = [
        format!("{{{{ {} }}}}", nested("(", "1", ")", 50_000)),
        format!("{{{{ {} }}}}", nested("[", "1", "]", 50_000)),
        format!("{{{{ {} }}}}", nested("{1:", "1", "}", 50_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(50_000)),
        format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(50_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(50_000)),
        format!("{{{{ x{} }}}}", "()".repeat(50_000)),
        format!("{{{{ 1{} }}}}", "|string".repeat(50_000)),
        nested("{% if true %}", "x", "{% endif %}", 50_000),
        nested("{% for x in [1] %}", "x", "{% endfor %}", 50_000),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m() %}{{ [[[[m()]]]] | join }}{% endmacro %}{{ m() }}".to_owned(),
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        "{% block a %}{{ self.a() }}{% endblock %}".to_owned(),
        wrapped("[]", "[ns.v]"),
        wrapped("[]", "{'a': ns.v}"),
        wrapped("[]", "[ns.v] | select('defined')"),
        wrapped("''", "joiner(ns.v)"),
        wrapped("''", "cycler(ns.v)"),
        wrapped("[]", "[ns.v].index"),
        "{% set ns = namespace() %}{% set ns.v = ns %}{{ ns }}".to_owned(),
        "{% set ns = namespace(v=1) %}{% for i in range(50000) %}{% for j in [ns.v] %}\
         {% set ns.v = loop %}{% endfor %}{% endfor %}"
            .to_owned(),
    ];
    for template in cases {
        let shown: String = template.chars().take(80).collect();
        let error = render(template).expect_err(&shown);
        let why = ["too deep", "too long"];
        assert!(why.iter().any(|w| error.contains(w)), "{shown}: {error}");
    }
}

#[test]
fn wide_or_cyclic_values_render() {
    let cases = [
        (format!("{{{{ 1{} }}}}", "+1".repeat(50_000)), "50001"),
        (
            format!(
                "{{% if 0 %}}{}{{% endif %}}x",
                "{% elif 0 %}".repeat(20_000)
            ),
            "x",
        ),
        (format!("{{{{ {} }}}}", nested("(", "1", ")", 90)), "1"),
        (nested("{% if true %}", "x", "{% endif %}", 90), "x"),
        (nested("{% for x in [1] %}", "x", "{% endfor %}", 90), "x"),
        (wrapped("1", "namespace(v=ns.v)"), "done"),
        (
            "{% set a = namespace() %}{% set a.x = [a] %}{{ a == a.x[0] }}".to_owned(),
            "True",
        ),
        (
            "{% set ns = namespace(v='') %}{% for i in range(20000) %}{% set q = ns.v %}\
             {% macro m() %}{{ q }}{% endmacro %}{% set ns.v = m %}{% endfor %}done"
                .to_owned(),
            "done",
        ),
        (
            "{% set ns = namespace(v='') %}{% for i in range(20000) %}{% for j in [1] recursive %}\
             {% set q = loop.changed(ns.v) %}{% set ns.v = loop %}{% endfor %}{% endfor %}done"
                .to_owned(),
            "done",
        ),
    ];
    for (template, text) in cases {
        let shown: String = template.chars().take(80).collect();
        assert_eq!(render(template).as_deref(), Ok(text), "{shown}");
    }
}

fn parameters(count: usize) -> String {
    let names: Vec<_> = (0..count).map(|number| format!("p{number}")).collect();
    names.join(",")
}

#[test]
fn huge_sources_are_refused() {
    let error = render("x".repeat((2 << 20) + 1)).expect_err("too large");
    assert!(error.contains("larger than 2097152 bytes"), "{error}");
}

/// A busy template ends by its own count of steps, which is the same on every machine.
#[test]
fn work_is_counted_not_timed() {
    let counted = |rounds: usize| {
        render(format!(
            "{{% set ns = namespace(v=0) %}}{{% for i in range({rounds}) %}}{{% for j in range(100) %}}\
             {{% set ns.v = ns.v + 1 %}}{{% endfor %}}{{% endfor %}}{{{{ ns.v }}}}"
        ))
    };
    assert_eq!(counted(2_000).as_deref(), Ok("200000"));
    let error = counted(20_000).expect_err("two million assignments are no conversation");
    assert!(error.contains("does not end"), "{error}");
}

#[test]
fn excessive_work_is_stopped() {
    let long = "{% set a = 'x' * 1000000 %}";
    let forever =
        |inside: &str| format!("{long}{{% for i in range(99999) %}}{inside}{{% endfor %}}");
    let doubled = |value: &str, next: &str, last: &str| {
        format!(
            "{{% set ns = namespace(v={value}) %}}{{% for i in range(100) %}}\
             {{% set ns.v = {next} %}}{{% endfor %}}{last}"
        )
    };
    let cases = [
        forever("{% for j in range(99999) %}{% endfor %}"),
        forever("{{ a }}"),
        forever("{% set b = a ~ a %}"),
        forever("{% set b = a == (a | string) %}{{ 'y' in a }}"),
        forever("{{ a | length }}"),
        forever("{{ {a: 1}[a] }}"),
        forever("{{ a[999999] }}"),
        forever("{{ (a | upper)[0] }}"),
        forever("{{ [3, a, 1] == [3, a | string, 1] }}"),
        doubled("'x'", "ns.v + ns.v", ""),
        doubled("[1]", "ns.v + ns.v", ""),
        doubled("[1]", "[ns.v, ns.v]", "{{ ns.v | tojson }}"),
        doubled("[1]", "[ns.v, ns.v]", "{{ ns.v == [ns.v, ns.v][0] + [] }}"),
        doubled("(1,)", "(ns.v, ns.v)", "{{ {ns.v: 1} | length }}"),
        "{{ 'x' * 10 ** 15 }}".to_owned(),
        "{{ [1] * 10 ** 15 }}".to_owned(),
        "{{ 'x'.center(10 ** 15) }}".to_owned(),
        "{{ 'x'.zfill(10 ** 30) }}".to_owned(),
        "{{ 'x\ny' | indent(10 ** 15) }}".to_owned(),
        "{{ [1] | batch(10 ** 15, 'x') | list }}".to_owned(),
        "{{ '%1000000000d' % 1 }}".to_owned(),
        "{{ '{:1000000000}'.format(1) }}".to_owned(),
        "{{ range(10 ** 9) }}".to_owned(),
        "{{ strftime_now('%1000d' * 1000) }}".to_owned(),
        format!("{long}{{{{ a.replace('x', a) }}}}"),
        format!("{long}{{{{ a.join(a) | length }}}}"),
        format!("{long}{{{{ ([a] * 10000) | sort | length }}}}"),
        forever("{{ a.strip('y' * 1000 ~ 'x') }}"),
        forever("{{ a.startswith((a, ) * 1000) }}"),
        forever("{{ a is sameas (a | string) }}"),
        format!("{{% macro m({}) %}}{{% endmacro %}}", parameters(9000))
            + "{% set d = dict.fromkeys(range(9000) | map('string') | map('replace', '', 'p', 1)) %}"
            + "{% for i in range(99999) %}{{ m(**d) }}{% endfor %}",
    ];
    for template in cases {
        let shown: String = template.chars().take(100).collect();
        let start = Instant::now();
        assert!(render(template).is_err(), "{shown}");
        assert!(start.elapsed() < PATIENCE, "{shown}");
    }
}
