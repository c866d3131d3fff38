//! Compiles the peer protocol in pure Rust: no protoc is needed.

use prost::Message;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["cairn/raft/v1/raft.proto"], ["proto"])?;
    let path = PathBuf::from(std::env::var("OUT_DIR")?).join("raft_descriptor.bin");
    std::fs::write(&path, descriptors.encode_to_vec())?;
    tonic_build::configure()
        .file_descriptor_set_path(path)
        .skip_protoc_run()
        .bytes(["."])
        .compile_protos(&["proto/cairn/raft/v1/raft.proto"], &["proto"])?;
    Ok(())
}
