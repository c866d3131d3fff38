//! The result of a bench, for people and for programs.

use super::super::super::output::table;
use super::keys::Keys;
use super::load::{Bound, Kind, Measured, Plan};
use cairn_node::config::format_size;
use serde_json::{Value, json};
use std::time::Duration;

#[expect(clippy::cast_precision_loss, reason = "figures of four digits")]
fn float(number: u64) -> f64 {
    number as f64
}

fn rate(kind: &Kind, elapsed: Duration) -> f64 {
    float(kind.latency_us.len()) / elapsed.as_secs_f64().max(1e-9)
}

pub(super) fn as_json(plan: &Plan, keys: &Keys, measured: &Measured) -> Value {
    let kind = |kind: &Kind| {
        let latency = &kind.latency_us;
        json!({
            "requests": latency.len(),
            "per_second": rate(kind, measured.elapsed),
            "mean_us": latency.mean(),
            "p50_us": latency.value_at_quantile(0.5),
            "p99_us": latency.value_at_quantile(0.99),
            "p99_9_us": latency.value_at_quantile(0.999),
            "max_us": latency.max(),
            "errors": kind.errors,
        })
    };
    json!({
        "clients": plan.clients,
        "value_bytes": plan.size,
        "puts_percent": plan.puts_percent,
        "keys": keys.count(),
        "keys_put": keys.used(),
        "bound": match plan.bound {
            Bound::Time(time) => json!({ "seconds": time.as_secs_f64() }),
            Bound::Count(count) => json!({ "requests": count }),
        },
        "stale": plan.stale,
        "seed": plan.seed,
        "elapsed_seconds": measured.elapsed.as_secs_f64(),
        "puts": kind(&measured.puts),
        "gets": kind(&measured.gets),
        "gets_found": measured.gets_found,
        "requests_under_way": under_way(measured),
    })
}

/// Rate × mean latency. By Little's law this is the number of clients, if they did nothing but
/// wait.
fn under_way(measured: &Measured) -> f64 {
    let one = |kind: &Kind| rate(kind, measured.elapsed) * kind.latency_us.mean() / 1e6;
    one(&measured.puts) + one(&measured.gets)
}

pub(super) fn as_text(plan: &Plan, keys: &Keys, measured: &Measured) -> String {
    let head =
        ["", "REQUESTS", "PER SECOND", "MIB/S", "MEAN", "P50", "P99", "P99.9", "MAX", "ERRORS"];
    let mut rows = Vec::new();
    for (name, kind) in [("put", &measured.puts), ("get", &measured.gets)] {
        let latency = &kind.latency_us;
        if latency.is_empty() && kind.errors.is_empty() {
            continue;
        }
        let ms = |us: f64| format!("{:.2} ms", us / 1000.0);
        let at = |quantile| ms(float(latency.value_at_quantile(quantile)));
        let per_second = rate(kind, measured.elapsed);
        let mib = per_second * float(plan.size as u64) / 1_048_576.0;
        rows.push(vec![
            name.into(),
            latency.len().to_string(),
            format!("{per_second:.0}"),
            format!("{mib:.1}"),
            ms(latency.mean()),
            at(0.5),
            at(0.99),
            at(0.999),
            ms(float(latency.max())),
            kind.errors.values().sum::<u64>().to_string(),
        ]);
    }
    let mut text = format!(
        "{} clients, values of {}, {} of {} keys put, {:.1} s; rate × mean latency = {:.1} requests under way\n{}",
        plan.clients,
        format_size(plan.size as u64),
        keys.used(),
        keys.count(),
        measured.elapsed.as_secs_f64(),
        under_way(measured),
        table(&head, rows)
    );
    let errors = measured.puts.errors.iter().chain(&measured.gets.errors);
    for (error, count) in errors {
        text.push_str(&format!("\n{count} × {error}"));
    }
    text
}
