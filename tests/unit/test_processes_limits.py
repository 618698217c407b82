"""What a started process may use."""

import resource
import sys
from pathlib import Path

from turnkeeper import processes


def test_a_started_process_may_open_as_many_files_as_the_hard_limit_allows(tmp_path: Path) -> None:
    """With the usual soft limit of 1024 RabbitMQ stops answering once a few hundred quorum queues exist."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
    try:
        say = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        log = tmp_path / "log"
        record = processes.spawn(tmp_path, "child", [sys.executable, "-c", say], {}, log=log)
        assert processes.wait_gone([record], 20) == []
        assert int(log.read_text()) == min(hard, processes.OPEN_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
