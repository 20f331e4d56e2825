# One image with all three services; the command says which one a container is: target, draft or gateway.
#
#   docker build -t forerun .
#   docker build -t forerun --build-arg TORCH_INDEX=<the index that pytorch.org names for CPUs> .    smaller by gigabytes
#
# The environment may see the base image's packages: the official base has none, one that brings torch is not asked twice.

FROM python:3.11-slim AS build
WORKDIR /src
RUN python -m venv --system-site-packages /opt/forerun
ENV PATH=/opt/forerun/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# What forerun needs changes less often than forerun: a layer of its own.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
    > requirements.txt
ARG TORCH_INDEX=""
RUN pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && pip install -c constraints.txt -r requirements.txt
COPY README.md LICENSE NOTICE ./
COPY forerun forerun
COPY draft_service draft_service
COPY target_service target_service
COPY gateway gateway
RUN pip install --no-deps .

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 forerun && install -d -o forerun -g forerun /models
COPY --from=build /opt/forerun /opt/forerun
ENV PATH=/opt/forerun/bin:$PATH FORERUN_CACHE=/models FORERUN_HOST=0.0.0.0 PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/forerun
VOLUME /models
# Each container names its own FORERUN_PORT; 50060 is the gateway's default.
HEALTHCHECK --interval=5s --timeout=5s --start-period=10m --retries=3 \
    CMD ["sh", "-c", "python -m forerun.ready 127.0.0.1:${FORERUN_PORT:-50060}"]
ENTRYPOINT ["forerun"]
CMD ["--help"]
