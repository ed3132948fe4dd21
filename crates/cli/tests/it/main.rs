//! The program `sinew` as people use it, in real processes: one executable.

mod answering;
mod away;
mod bench_serve;
mod burn;
mod chat;
mod checks;
mod clients;
mod common;
mod devices;
mod elsewhere;
mod examples;
mod experts;
mod face;
mod folders;
mod guides;
mod install;
mod kept_answers;
mod keystrokes;
mod links;
mod losses;
mod messages;
mod models;
mod operator;
mod owner;
mod pictures;
mod presets;
mod prompts;
mod quality;
mod replicas;
mod report;
mod resting;
mod secrets;
mod seeing;
mod sessions;
mod starting;
mod tools;
mod two_nodes;
mod typed;
mod windows;

#[path = "../../../checkpoint/tests/it/common/unmake.rs"]
mod unmake;
