//! A service of the machine: its entry with the system, and its life as one.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use windows_service::service::{
    ServiceAccess, ServiceAction, ServiceActionType, ServiceControl, ServiceControlAccept,
    ServiceErrorControl, ServiceExitCode, ServiceFailureActions, ServiceFailureResetPeriod,
    ServiceInfo, ServiceStartType, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_service::{Error, Result, define_windows_service, service_dispatcher};
use windows_sys::Win32::Foundation::ERROR_INVALID_LEVEL;

/// How long the system may wait for a start or an end.
const PATIENCE: Duration = Duration::from_secs(30);
/// After a failure the system starts a service again so much later, and forgets the failure after
/// an hour without one.
const AGAIN: Duration = Duration::from_secs(2);
const FORGET: Duration = Duration::from_secs(3600);
/// The account with the least rights that reaches the network.
const ACCOUNT: &str = r"NT AUTHORITY\LocalService";
const KIND: ServiceType = ServiceType::OWN_PROCESS;

fn manager(access: ServiceManagerAccess) -> Result<ServiceManager> {
    ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT | access)
}

/// Makes a service that starts with the machine, or changes it, and starts it.
///
/// # Errors
/// The caller is no administrator, or the service cannot start.
pub fn install(name: &str, title: &str, program: &Path, arguments: &[OsString]) -> Result<()> {
    let info = ServiceInfo {
        name: name.into(),
        display_name: title.into(),
        service_type: KIND,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: program.to_owned(),
        launch_arguments: arguments.to_vec(),
        dependencies: Vec::new(),
        account_name: Some(ACCOUNT.into()),
        account_password: None,
    };
    let manager = manager(ServiceManagerAccess::CREATE_SERVICE)?;
    let service = match manager.open_service(name, ServiceAccess::ALL_ACCESS) {
        Ok(service) => {
            service.change_config(&info)?;
            service
        }
        Err(_) => manager.create_service(&info, ServiceAccess::ALL_ACCESS)?,
    };
    let again = ServiceAction { action_type: ServiceActionType::Restart, delay: AGAIN };
    service.update_failure_actions(ServiceFailureActions {
        reset_period: ServiceFailureResetPeriod::After(FORGET),
        reboot_msg: None,
        command: None,
        actions: Some(vec![again; 3]),
    })?;
    // Wine restarts after crashes alone.
    match service.set_failure_actions_on_non_crash_failures(true) {
        Err(Error::Winapi(error)) if error.raw_os_error() == Some(ERROR_INVALID_LEVEL as i32) => {}
        set => set?,
    }
    stop(name)?;
    service.start::<OsString>(&[])
}

/// Whether there is such a service.
pub fn exists(name: &str) -> bool {
    manager(ServiceManagerAccess::empty())
        .and_then(|manager| manager.open_service(name, ServiceAccess::QUERY_STATUS))
        .is_ok()
}

/// Whether it runs.
pub fn is_running(name: &str) -> bool {
    let state = manager(ServiceManagerAccess::empty()).and_then(|manager| {
        let service = manager.open_service(name, ServiceAccess::QUERY_STATUS)?;
        Ok(service.query_status()?.current_state)
    });
    state.is_ok_and(|state| state == ServiceState::Running)
}

/// Stops a service, and waits until it has ended.
///
/// # Errors
/// There is none, the caller is no administrator, or it goes on for over 30 s.
pub fn stop(name: &str) -> Result<()> {
    let access = ServiceAccess::QUERY_STATUS | ServiceAccess::STOP;
    let service = manager(ServiceManagerAccess::empty())?.open_service(name, access)?;
    let state = || service.query_status().map(|status| status.current_state);
    let since = Instant::now();
    if state()? != ServiceState::Stopped {
        service.stop()?;
    }
    while state()? != ServiceState::Stopped {
        if since.elapsed() > PATIENCE {
            return Err(Error::Winapi(std::io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Stops and removes a service.
///
/// # Errors
/// Those of [`stop`].
pub fn uninstall(name: &str) -> Result<()> {
    stop(name)?;
    let manager = manager(ServiceManagerAccess::empty())?;
    manager.open_service(name, ServiceAccess::DELETE)?.delete()
}

/// Tells a service that it is to end.
pub struct Ends(Receiver<()>);

impl Ends {
    /// Whether it is to end, after waiting so long at most.
    pub fn within(&self, wait: Duration) -> bool {
        // A sender that is gone would have said so first.
        self.0.recv_timeout(wait) != Err(RecvTimeoutError::Timeout)
    }
}

/// What a service does, and whether it ended well.
type Body = Box<dyn FnOnce(&Ends) -> bool + Send>;

/// The system passes nothing to the function that it calls.
static BODY: Mutex<Option<(String, Body)>> = Mutex::new(None);

/// Lets the system, which has started this process as the service `name`, run `body`.
///
/// # Errors
/// Somebody else has started it.
pub fn run(name: &str, body: impl FnOnce(&Ends) -> bool + Send + 'static) -> Result<()> {
    if let Ok(mut place) = BODY.lock() {
        *place = Some((name.to_owned(), Box::new(body)));
    }
    service_dispatcher::start(name, entry)
}

define_windows_service!(entry, serve);

fn serve(_: Vec<OsString>) {
    let Some((name, body)) = BODY.lock().ok().and_then(|mut body| body.take()) else { return };
    let (end, ends): (Sender<()>, _) = mpsc::channel();
    let handler = move |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            // The receiver is gone once the service ends anyway.
            let _ = end.send(());
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    };
    let Ok(handle) = service_control_handler::register(&name, handler) else { return };
    let tell = |state, accepted, code| {
        // The system has no other place to be told at.
        let _ = handle.set_service_status(ServiceStatus {
            service_type: KIND,
            current_state: state,
            controls_accepted: accepted,
            exit_code: ServiceExitCode::Win32(code),
            checkpoint: 0,
            wait_hint: PATIENCE,
            process_id: None,
        });
    };
    tell(ServiceState::Running, ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN, 0);
    let ended_well = body(&Ends(ends));
    tell(ServiceState::Stopped, ServiceControlAccept::empty(), u32::from(!ended_well));
}
