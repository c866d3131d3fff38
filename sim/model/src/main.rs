//! `cargo model`
use std::process::ExitCode;
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("--trace") => cairn_model::print_trace(&args[2]),
        Some(f) => cairn_model::print_all(f),
        None => cairn_model::print_all(""),
    };
    ExitCode::SUCCESS
}
