//! The dashboard, the alerts and the documents name metrics that a target has.

use nvmf_config::MetricsAddress;
use nvmf_initiator::{Connection, block_on};
use nvmf_target::metrics::fetch::fetch;
use nvmf_target::metrics::scrape::{Family, Scrape};
use nvmf_tests::site::Site;
use promql_parser::label::Labels;
use promql_parser::parser::{Expr, LabelModifier, VectorSelector, parse};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use yaml_rust2::YamlLoader;

/// What Prometheus itself adds.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

fn document(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a target says that has a host.
fn scrape(name: &str) -> Scrape {
    let site = Site::new(name).expect("a site");
    let metrics = format!("[metrics]\nlisten = \"{}\"\n", site.path("metrics").display());
    site.configure(&(metrics + &site.subsystem(&["memory = \"1MiB\"".to_owned()]))).expect("a configuration");
    let target = site.serve().expect("a target");
    let connection = block_on(Connection::connect(site.options(1).expect("options"))).expect("a connection");
    let scrape =
        fetch(&MetricsAddress::Unix(site.path("metrics")), Duration::from_secs(30)).expect("metrics");
    drop(connection);
    target.stop().expect("the target stops");
    scrape
}

fn labels(family: &Family) -> BTreeSet<&str> {
    let names = family.samples.iter().flat_map(|sample| &sample.labels);
    names.map(|(name, _)| name.as_str()).filter(|name| *name != "le").collect()
}

/// The labels of a metric as the documents have them.
fn documented<'a>(metrics: &'a str, name: &str) -> BTreeSet<&'a str> {
    let is_row =
        |line: &&str| ["", "_total"].iter().any(|suffix| line.starts_with(&format!("| `{name}{suffix}` |")));
    let row = metrics.lines().find(is_row);
    let row = row.unwrap_or_else(|| panic!("{name} is not in METRICS.md"));
    let labels = row.split('|').nth(3).unwrap_or_default();
    labels.split('`').skip(1).step_by(2).collect()
}

/// The metrics by the names that queries have for them, with their labels. Those of a group of gateways have no sample
/// without one.
fn by_name<'a>(scrape: &'a Scrape, metrics: &'a str) -> BTreeMap<String, BTreeSet<&'a str>> {
    let mut names = BTreeMap::new();
    for family in &scrape.families {
        if family.samples.is_empty() {
            assert!(
                family.name.starts_with("nvmf_target_group_"),
                "{} has no sample to look at",
                family.name
            );
            for suffix in ["", "_total"] {
                let labels = documented(metrics, &family.name);
                names.insert(format!("{}{suffix}", family.name), labels);
            }
        }
        let suffixes: BTreeSet<&str> = family.samples.iter().map(|sample| sample.suffix.as_str()).collect();
        for suffix in suffixes {
            let mut labels = labels(family);
            labels.extend((suffix == "_bucket").then_some("le"));
            names.insert(format!("{}{suffix}", family.name), labels);
        }
    }
    names
}

/// Everything that a query selects, and the labels that it groups by.
fn walk<'a>(expr: &'a Expr, selected: &mut Vec<&'a VectorSelector>, grouped: &mut Vec<&'a Labels>) {
    match expr {
        Expr::Aggregate(it) => {
            if let Some(LabelModifier::Include(labels) | LabelModifier::Exclude(labels)) = &it.modifier {
                grouped.push(labels);
            }
            walk(&it.expr, selected, grouped);
        }
        Expr::Unary(it) => walk(&it.expr, selected, grouped),
        Expr::Binary(it) => {
            walk(&it.lhs, selected, grouped);
            walk(&it.rhs, selected, grouped);
        }
        Expr::Paren(it) => walk(&it.expr, selected, grouped),
        Expr::Subquery(it) => walk(&it.expr, selected, grouped),
        Expr::VectorSelector(it) => selected.push(it),
        Expr::MatrixSelector(it) => selected.push(&it.vs),
        Expr::Call(it) => it.args.args.iter().for_each(|it| walk(it, selected, grouped)),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
        Expr::Extension(it) => panic!("{it:?} is no PromQL"),
    }
}

fn check(query: &str, names: &BTreeMap<String, BTreeSet<&str>>) {
    let expr =
        parse(&query.replace("$__rate_interval", "5m")).unwrap_or_else(|error| panic!("{query}: {error}"));
    let (mut selected, mut grouped) = (Vec::new(), Vec::new());
    walk(&expr, &mut selected, &mut grouped);
    let mut known: BTreeSet<&str> = OF_PROMETHEUS.into();
    for selector in &selected {
        let name = selector.name.as_deref().expect("a metric is selected by its name");
        // Prometheus says this of every target.
        if name == "up" {
            continue;
        }
        let labels = names.get(name).unwrap_or_else(|| panic!("{query}: there is no {name}"));
        for matcher in &selector.matchers.matchers {
            let label = matcher.name.as_str();
            assert!(
                labels.contains(label) || OF_PROMETHEUS.contains(&label),
                "{query}: {name} has no {label}"
            );
        }
        known.extend(labels);
    }
    for label in grouped.iter().flat_map(|labels| &labels.labels) {
        assert!(known.contains(label.as_str()), "{query}: nothing has a label {label}");
    }
}

#[test]
fn dashboard_queries_have_their_metrics() {
    let scrape = scrape("dashboard");
    let metrics = document("docs/METRICS.md");
    let names = by_name(&scrape, &metrics);
    let dashboard: serde_json::Value =
        serde_json::from_str(&document("deploy/grafana/nvmf-target.json")).expect("JSON");
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            check(target["expr"].as_str().expect("a query"), &names);
            queries += 1;
        }
    }
    assert!(queries > 20, "{queries} queries");
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let inner =
            query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')')).expect("label_values");
        let (metric, label) = inner.split_once(", ").expect("a metric and a label");
        assert!(names[metric].contains(label) || OF_PROMETHEUS.contains(&label), "{query}");
    }
}

#[test]
fn alerts_have_their_metrics_and_a_line_in_the_runbook() {
    let scrape = scrape("alerts");
    let metrics = document("docs/METRICS.md");
    let names = by_name(&scrape, &metrics);
    let rules =
        YamlLoader::load_from_str(&document("deploy/prometheus/nvmf-target.rules.yml")).expect("YAML");
    let runbook = document("docs/OPERATIONS.md");
    let mut alerts = BTreeSet::new();
    for rule in rules[0]["groups"][0]["rules"].as_vec().expect("rules") {
        let name = rule["alert"].as_str().expect("a name");
        check(rule["expr"].as_str().expect("a query"), &names);
        let line = runbook.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let line = line.unwrap_or_else(|| panic!("docs/OPERATIONS.md says nothing of {name}"));
        let command = line.split(" | ").nth(2).expect("three columns");
        assert!(command.contains('`') || name == "NvmfHostsLost", "{name} has no command: {line}");
        alerts.insert(name);
    }
    assert!(alerts.len() > 10, "{alerts:?}");
    let described = runbook.lines().filter_map(|line| line.strip_prefix("| `Nvmf"));
    for line in described {
        let name = format!("Nvmf{}", line.split('`').next().unwrap_or_default());
        assert!(alerts.contains(name.as_str()), "docs/OPERATIONS.md describes {name}, which is no alert");
    }
}

#[test]
fn every_metric_is_documented() {
    let scrape = scrape("documented");
    let text = document("docs/METRICS.md");
    let rows: BTreeMap<&str, Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| `nvmf_target_"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>())
        .map(|columns| (columns[0].trim_matches('`'), columns))
        .collect();
    for family in &scrape.families {
        let suffix = if family.kind == "counter" { "_total" } else { "" };
        let name = format!("{}{suffix}", family.name);
        let row = rows.get(name.as_str()).unwrap_or_else(|| panic!("docs/METRICS.md has no {name}"));
        assert_eq!(row[1], family.kind, "{name}");
        let documented: BTreeSet<&str> = row[2]
            .split(", ")
            .map(|label| label.trim_matches('`'))
            .filter(|label| *label != "none")
            .collect();
        // A target of no group has no series of one.
        if !family.samples.is_empty() {
            assert_eq!(documented, labels(family), "{name}");
        }
        assert!(!row[3].is_empty(), "{name} means something");
    }
    assert_eq!(rows.len(), scrape.families.len(), "docs/METRICS.md has metrics that are not there");
}
