# Stands in for the official python slim image: `python` is the interpreter, `venv` and `pip` work.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv python-is-python3 ca-certificates \
 && rm -rf /var/lib/apt/lists/*
ENV LANG=C.UTF-8
CMD ["python"]
