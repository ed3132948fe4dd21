use super::*;
use crate::data_dir::{self, Daemon};

#[test]
fn who_hangs_up_is_there_and_who_does_not_listen_is_not() {
    let home = tempfile::tempdir().unwrap();
    let data_dir = DataDir::at(home.path().join("node"));
    data_dir.create().unwrap();
    data_dir.make_admin_token().unwrap();
    let lock = data_dir::lock(&data_dir);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (api, dir) = (listener.local_addr().unwrap(), data_dir.id().unwrap());
    let lan = Vec::new();
    data_dir.announce(&Daemon { pid: 7, api, listen: api, dir, lan, tls: true }).unwrap();
    let hangs_up = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let error = Client::here(&data_dir).unwrap_err();
    assert!(error.to_string().contains("does not answer"), "{error}");
    hangs_up.join().unwrap();
    let error = Client::here(&data_dir).unwrap_err();
    assert!(matches!(error, CliError::NoNode { .. }), "{error}");
    drop(lock);
}

#[test]
fn who_has_the_port_of_a_killed_node_is_sent_nothing() {
    let home = tempfile::tempdir().unwrap();
    let data_dir = DataDir::at(home.path().join("node"));
    data_dir.create().unwrap();
    data_dir.make_admin_token().unwrap();
    let lock = data_dir::lock(&data_dir);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (api, dir) = (listener.local_addr().unwrap(), data_dir.id().unwrap());
    data_dir
        .announce(&Daemon { pid: 7, api, listen: api, dir, lan: Vec::new(), tls: false })
        .unwrap();
    // A command that runs on, such as a chat, when the node is killed.
    let local = Some((7, data_dir.clone()));
    let key = data_dir.admin_token();
    let client = Client { agent: trust::agent(), api: format!("http://{api}"), key, local };
    drop(lock);
    let asks: [&dyn Fn() -> Result<(), CliError>; 5] = [
        &|| Client::here(&data_dir).map(drop),
        &|| client.status().map(drop),
        &|| client.models().map(drop),
        &|| client.chat(&json!({})).map(drop),
        &|| client.events(0, true, |_| true),
    ];
    for (at, ask) in asks.iter().enumerate() {
        let error = ask().unwrap_err();
        assert!(matches!(error, CliError::NoNode { .. }), "{at}: {error}");
    }
    let asked = listener.accept().map(drop).unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_line_is_progress_or_the_nodes_own_words() {
    let read = read_progress::<ServeProgress>;
    let ready = read(r#"{"status":"ready","instance":"i-1"}"#).unwrap();
    assert_eq!((&*ready.status, &*ready.instance), ("ready", "i-1"));
    let failed = r#"{"error":{"message":"m cannot be served","code":"model_failed"}}"#;
    let error = error_message(&read(failed).unwrap().error.unwrap());
    assert_eq!(error, "m cannot be served");
    assert!(read("?").is_err());
}
