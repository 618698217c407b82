# The python stand-in plus the wheels of our dependencies, for the builder stage of deploy/docker/Dockerfile:
# pip inside finds what it needs on disk and asks no index. Only the virtual environment leaves that stage.
ARG BASE
FROM ${BASE}
COPY wheels /wheels
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels
