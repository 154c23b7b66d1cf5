/*
 * The state of a host in a cluster: the other hosts, the channels to their daemons, the channels of local
 * programs. docs/CLUSTER.md explains it. Without a cluster none of this runs.
 *
 * Every daemon has a channel of kind PEER with every other that it can reach, and sends its HostInfo on each
 * twice a second. A host that has been silent for some seconds is lost; this host keeps dialling it. The
 * central daemon forwards the HostInfo of all hosts.
 */
#ifndef PBEAMD_TRANSPORT_CLUSTER_H
#define PBEAMD_TRANSPORT_CLUSTER_H

#include "channel/channel.h"
#include "namespace/registry.h"
#include "pbeamd/transport/admission.h"
#include "pbeamd/transport/server.h"

enum {
	CLUSTER_ADDRESS_MAX = 300, /* "ADDRESS:PORT" */
	CLUSTER_MAPS_MAX = 32,
	CLUSTER_INSTANCE_SIZE = 16,
};

/* Options, from the command line and the configuration file. */
struct cluster_options {
	char listen[CLUSTER_ADDRESS_MAX], join[CLUSTER_ADDRESS_MAX]; /* "" none */
	char key[PATH_MAX];
	char name[CHANNEL_HOST_MAX];
	char *maps[CLUSTER_MAPS_MAX]; /* "FROM=TO" */
	int nmaps;
	struct admission_limits startups; /* full == 0: not set */
};

struct peer;

/* This host's knowledge of the central host. */
struct registry_state {
	uint64_t term; /* number of take-overs so far; the highest term wins */
	uint64_t revision;
	bool central;				/* this host is central */
	uint8_t cluster[CLUSTER_INSTANCE_SIZE]; /* random number of the cluster */
	char host[CHANNEL_HOST_MAX];		/* "" not known yet */
	char address[CLUSTER_ADDRESS_MAX];	/* its listening address */
	char told[CLUSTER_ADDRESS_MAX];		/* --join when the state was stored */
};

/* When a connection is tried again. */
struct dialler {
	bool busy;
	unsigned wait_ms;
	uint64_t at_ns;
};

/* Another host. */
struct host {
	struct host *next;
	char name[CHANNEL_HOST_MAX];
	Pbeam__HostInfo *info; /* the last description received, NULL before the first */
	struct peer *peer;     /* NULL: no channel */
	uint64_t heard_ns;     /* CLOCK_MONOTONIC, directly or through the central daemon; 0 never */
	uint64_t quiet_ns;     /* time when the channel was lost */
	struct dialler dialler;
	bool said_lost;
};

struct cluster;

struct incoming; /* a connection without a greeting yet */

struct peer {
	struct peer *next;
	struct cluster *cluster;
	struct stream stream;
	struct host *host; /* NULL before its first description */
	char name[CHANNEL_HOST_MAX], address[CLUSTER_ADDRESS_MAX];
	uint64_t heard_ns;
	uint64_t heard_revision; /* on the central daemon: the peer has all changes up to this one */
};

/* Calls from the transport to the layers above. */
struct cluster_calls {
	/* Fills in their part of this host's description. */
	must_check int (*describe)(const struct cluster *cluster, Pbeam__HostInfo *info);
	/* Updates the part of it that changes. */
	void (*refresh)(const struct cluster *cluster, Pbeam__HostInfo *info);
	/* -EINVAL with the reason if a new peer is of another cluster. */
	must_check int (*check)(const struct peer *peer, const Pbeam__HostInfo *info, struct err *err);
	/* A host has described itself, for the first time on this channel (`first`). */
	void (*described)(struct peer *peer, const Pbeam__HostInfo *info, bool first);
	/* A frame for another layer. False: malformed. */
	bool (*frame)(struct peer *peer, const struct frame *frame);
	/* The copy of the registry is complete for the first time. */
	void (*ready)(struct cluster *cluster);
	/* The channel to a host has ended; peer->host has no peer any more. */
	void (*lost)(struct cluster *cluster, const struct peer *peer);
};

struct cluster {
	const struct cluster_calls *calls;
	struct server *server;
	const struct cluster_options *options;
	struct channel_key key;
	uint8_t instance[CLUSTER_INSTANCE_SIZE]; /* distinguishes this host from another of the same name */
	bool central;
	bool deposed; /* this host was central until another one took over */
	struct registry_state state;
	struct take_over *take_over; /* this host is becoming central */
	int listener;		     /* -1: it does not listen */
	struct listener *accepting;
	struct event *tick;
	uint64_t ticked_ns;
	Pbeam__HostInfo *self;
	struct host *hosts;
	struct peer *peers;
	struct incoming *incoming;
	struct admission_known known;
	unsigned long turned_away; /* connections since the last line in the log about them */
	uint64_t turned_away_ns;   /* time of that line */
	struct dialler join;
	struct registry registry; /* one of these two: */
	struct registry store, remote;
	bool kept; /* the store has all of the copy */
	struct registry_copy *copy;
	struct registry_wait *waits; /* requests of local programs to the registry */
	struct heard_wait *unheard;  /* replies that wait until all hosts have the change */
	struct numbers *numbers;
	struct addresses *addresses;
	uint64_t settled_ns,
		settled_version;      /* time of the last settled_tick(), and the newest record then */
	struct stale_job *stale_jobs; /* processes that may have been replaced elsewhere, */
	uint64_t stale_jobs_ns;	      /* to be looked at again then, */
	uint64_t away_ns; /* CLOCK_REALTIME: if they are older than the loss of the central host */
	struct remote_call *remote_calls; /* requests to other hosts */
	struct guest *guests;		  /* requests of other hosts */
	int64_t next_call;
};

/* A refusal unless there is a cluster. */
must_check int cluster_need(const struct server *server, struct err *err);

/* True if `host` is the central host, as far as this host knows. */
bool cluster_is_central(const struct cluster *cluster, const char *host);
/* The central host's address for dialling; "" if it is this host, or not known. */
const char *cluster_central_address(const struct cluster *cluster);

#endif
