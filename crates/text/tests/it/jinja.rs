//! Expressions of templates, each with the result of Python's Jinja.

use text::{ChatTemplate, Message, Render, TextError};

fn shown(template: &str) -> String {
    let template = ChatTemplate::new(template, "<s>", "</s>").unwrap();
    let rendered = template.render(&[Message::new("user", "Hi")], &Render::default());
    let told = |error: TextError| match error {
        TextError::TemplateFailed { detail } => format!("! {detail}"),
        other => other.to_string(),
    };
    rendered.unwrap_or_else(told)
}

fn check(cases: &[(&str, &str)]) {
    for (template, expected) in cases {
        assert_eq!(shown(template), *expected, "{template}");
    }
}

#[test]
fn methods_of_strings() {
    check(&[
        ("{{ 'aBc'.swapcase() }} {{ 'STRAßE'.casefold() }}", "AbC strasse"),
        ("{{ 'abc'.center(8, '*') }} {{ 'abc'.center(6) }}|", "**abc***  abc  |"),
        ("{{ 'abc'.ljust(5) }}|{{ 'abc'.rjust(5, '-') }}", "abc  |--abc"),
        ("{{ '42'.zfill(5) }} {{ '-42'.zfill(5) }}", "00042 -0042"),
        ("{{ 'a,b,c'.partition(',')[2] }} {{ 'a,b,c'.rpartition(',')[0] }}", "b,c a,b"),
        ("{{ 'abc'.partition('x')[0] }} {{ 'abc'.rpartition('x')[2] }}", "abc abc"),
        (
            "{{ ' a b '.split(none, 1) }} {{ ' a b c '.rsplit(none, 1) }}",
            "['a', 'b '] [' a b', 'c']",
        ),
        (r"{{ 'a\nb\r\nc'.splitlines() }}", "['a', 'b', 'c']"),
        (r"{{ 'a\nb\n'.splitlines(true) }}", r"['a\n', 'b\n']"),
        ("{{ 'abcabc'.find('b', 2) }} {{ 'abcabc'.rfind('b', 0, 3) }}", "4 1"),
        ("{{ 'aéaé'.find('é', -1) }} {{ 'abc'.find('', 5) }} {{ 'abc'.rindex('c') }}", "3 -1 2"),
        ("{{ 'abab'.count('a', 1) }} {{ 'abc'.startswith('b', 1) }}", "1 True"),
        ("{{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.startswith(['x', 'a']) }}", "True True"),
        (
            r"{{ 'a\tb'.expandtabs(4) }} {{ 'Ab Cd'.istitle() }} {{ 'a_1'.isidentifier() }}",
            "a   b True True",
        ),
        (r"{{ ['\t\x00é\u200b'] }}", r"['\t\x00é\u200b']"),
    ]);
}

#[test]
fn formats() {
    check(&[
        ("{{ '%5d|%-5d|%05d|%+d' % [1, 2, -3, 4] }}", "    1|2    |-0003|+4"),
        (
            "{{ '%.2f %e %g %g' % [3.14159, 12345.678, 0.0001, 1e20] }}",
            "3.14 1.234568e+04 0.0001 1e+20",
        ),
        ("{{ '%x %X %#o %c %i' % [255, 255, 8, 'x', 2.7] }}", "ff FF 0o10 x 2"),
        ("{{ '%r %5s| %(a)s' % 'a' }}", "! too few values for % (line 1)"),
        ("{{ '%(a)s %(b)03d' % {'a': 1, 'b': 2} }}", "1 002"),
        ("{{ '%.1f'|format(2.25) }} {{ '%r' % 'a' }}", "2.2 'a'"),
        ("{{ '{:>5}|{:<5}|{:^5}|{:*^5}'.format(1, 2, 'c', 4) }}", "    1|2    |  c  |**4**"),
        (
            "{{ '{:05d} {:.2f} {:,} {:x} {:%}'.format(-42, 3.14159, 1234567, 255, 0.5) }}",
            "-0042 3.14 1,234,567 ff 50.000000%",
        ),
        ("{{ '{!r} {a[b]} {a.b} {0}'.format('q', a={'b': 1}) }}", "'q' 1 1 q"),
        ("{{ '{:s}'.format(1) }}", "! an integer is not written so (line 1)"),
    ]);
}

#[test]
fn filters() {
    check(&[
        (
            "{{ [1, 2, 3]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 0)|list }}",
            "[[1, 2], [3]] [[1, 2], [3, 0]]",
        ),
        ("{{ [1, 2, 3, 4, 5]|slice(2)|list }}", "[[1, 2, 3], [4, 5]]"),
        (
            "{% set l = [{'a': 2}, {'a': 1}, {'a': 2}] %}\
                {% for k, v in l|groupby('a') %}{{ k }}:{{ v|length }} {% endfor %}",
            "1:1 2:2 ",
        ),
        ("{{ 'hello wide world'|truncate(9) }} {{ 'hello'|truncate(3) }}", "hello... hello"),
        ("{{ 'hello wide world'|truncate(9, true, '') }} {{ 'a b'|wordcount }}", "hello wid 2"),
        (
            "{{ 2.675|round(2) }} {{ 1234.5|round(-2) }} {{ 3.2|round(0, 'ceil') }}",
            "2.67 1200.0 4.0",
        ),
        (
            "{{ '0x1f'|int(base=16) }} {{ '1_000'|int }} {{ ' 5 '|int }} {{ '_1'|int }}",
            "31 1000 5 0",
        ),
        ("{{ [[1, 2], [3, 4]]|map(attribute=0)|list }}", "[1, 3]"),
        (
            "{{ dict([['a', 1]], b=2) }} {{ {'a': 1}.copy() }} {{ [1].copy() }}",
            "{'a': 1, 'b': 2} {'a': 1} [1]",
        ),
    ]);
}

/// After a dot, Python finds a map's method before a key of its name.
#[test]
fn methods_hide_keys() {
    check(&[
        (
            "{% set m = {'items': {'a': 'x'}} %}{{ m.items.a is defined }} {{ m['items'].a }}",
            "False x",
        ),
        ("{{ {'a': 1}.get is defined }} {{ {'a': 1}.b is defined }}", "True False"),
    ]);
}

#[test]
fn arguments_of_macros() {
    let m = "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}";
    let x = "{% set x = 1 %}{% macro m(a=x) %}{{ a }}{% endmacro %}";
    let cases = [
        (m, "{{ m(1) }} {{ m(1, 2) }} {{ m(b=3, a=4) }}", "11 12 43"),
        (m, "{{ m(1, c=2) }}", "! m takes no argument `c` (line 1)"),
        (m, "{{ m(1, 2, 3) }}", "! too many arguments for m (line 1)"),
        (x, "{% for x in [5] %}{{ m() }}{% endfor %}", "1"),
    ];
    for (macros, call, expected) in cases {
        check(&[(&(macros.to_owned() + call), expected)]);
    }
}
