"""Trials are for tests: a production configuration neither names faults nor marks sessions."""

from libs.contracts.application import Application, load_application
from libs.runtime.settings import RuntimeSettings, SettingsError


def read_application(settings: RuntimeSettings) -> Application:
    """The application file of a service. Raises ApplicationError for a wrong one, SettingsError for one with faults
    on purpose where trials are not switched on."""
    application = load_application(settings.config)
    if application.faults and not settings.trials:
        raise SettingsError([
            "TURNKEEPER_TRIALS: the application file has faults, which are for tests: take them out, or set it to 1 "
            "where nothing is real"
        ])  # fmt: skip
    return application
