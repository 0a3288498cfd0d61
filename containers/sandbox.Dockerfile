# Where code that a model wrote may run: Python, its standard library, the C libraries that they load, and nothing else:
# no shell, no package manager, no other program. What it may reach is decided where it is started: no network, limits on
# memory, time and processes, a read-only root (containers/README.md).
ARG BASE=python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS collect
COPY containers/sandbox_root.py /build/
RUN python3 /build/sandbox_root.py /sandbox

FROM scratch
COPY --from=collect /sandbox /
ENV PATH=/usr/local/bin:/usr/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1
USER 10002:10002
WORKDIR /work
RUN ["python3", "-I", "-c", "import asyncio, decimal, fractions, json, math, random, re, statistics, unittest"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="headrace-sandbox" \
      org.opencontainers.image.description="Python for code that a model wrote" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["python3", "-I"]
