//! Where things are: the checkout, the target folder, its crates.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The root of the checkout.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Cargo's target folder, which `CARGO_TARGET_DIR` or a configuration file may have moved.
pub fn target() -> Result<PathBuf> {
    let folder = metadata()?["target_directory"].as_str();
    Ok(PathBuf::from(
        folder.context("cargo metadata names no target folder")?,
    ))
}

/// `cargo metadata`, with the packages of other people; asked once.
pub fn metadata() -> Result<&'static Value> {
    static METADATA: OnceLock<Value> = OnceLock::new();
    if let Some(known) = METADATA.get() {
        return Ok(known);
    }
    let output = Command::new(cargo())
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .context("cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let parsed = serde_json::from_slice(&output.stdout).context("output of cargo metadata")?;
    Ok(METADATA.get_or_init(|| parsed))
}

/// The cargo that runs us.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}
