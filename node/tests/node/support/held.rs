//! What a cluster holds, by key.

use cairn_client::{Client, ListOptions, Version};
use std::collections::BTreeMap;

pub type Held = BTreeMap<Vec<u8>, Vec<u8>>;

pub async fn put_all(client: &Client, held: &Held) {
    for (key, value) in held {
        client.put(key.clone(), value.clone()).await.expect("a put");
    }
}

pub async fn all(client: &Client) -> BTreeMap<Vec<u8>, (Version, Vec<u8>)> {
    let mut pages = client.pages(ListOptions::default());
    let mut held = BTreeMap::new();
    while let Some(page) = pages.next().await.expect("a page") {
        let items = page.items.into_iter();
        held.extend(items.map(|item| (item.key.to_vec(), (item.version, item.value.to_vec()))));
    }
    held
}

pub async fn values(client: &Client) -> Held {
    all(client).await.into_iter().map(|(key, (_, value))| (key, value)).collect()
}
