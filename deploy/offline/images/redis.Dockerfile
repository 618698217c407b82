# Stands in for the official redis image: same user id, same data folder, same command.
ARG BASE
FROM ${BASE}
RUN groupadd --system --gid 999 redis \
 && useradd --system --uid 999 --gid redis --home-dir /data --no-create-home redis \
 && apt-get update && apt-get install -y --no-install-recommends redis-server redis-tools \
 && rm -rf /var/lib/apt/lists/* /etc/redis \
 && install -d -o redis -g redis -m 700 /data
VOLUME /data
WORKDIR /data
USER redis
EXPOSE 6379
CMD ["redis-server"]
