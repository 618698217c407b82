# Stands in for the official rabbitmq image: same user id, same folders, same command.
ARG BASE
FROM ${BASE}
RUN groupadd --system --gid 999 rabbitmq \
 && useradd --system --uid 999 --gid rabbitmq --home-dir /var/lib/rabbitmq --no-create-home rabbitmq \
 && apt-get update && apt-get install -y --no-install-recommends rabbitmq-server \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o rabbitmq -g rabbitmq -m 755 /var/lib/rabbitmq /etc/rabbitmq /var/log/rabbitmq \
 && chown -R rabbitmq:rabbitmq /var/lib/rabbitmq
# Debian's wrappers in /usr/sbin refuse every user but root and rabbitmq; the programs themselves do not.
ENV PATH=/usr/lib/rabbitmq/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/var/lib/rabbitmq LANG=C.UTF-8 RABBITMQ_LOGS=-
VOLUME /var/lib/rabbitmq
USER rabbitmq
EXPOSE 5672 15692
CMD ["rabbitmq-server"]
