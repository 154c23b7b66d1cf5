/* Inside of a bridge: its lines, channels and loop. bridge.h tells the story. */
#ifndef SCIP_BRIDGE_LINE_H
#define SCIP_BRIDGE_LINE_H

#include <sys/socket.h>

#include "proto/frame.h"
#include "scip/bridge/bridge.h"

enum {
	BRIDGE_PIECE = 64 << 10,   /* at most so much in a record of a stream */
	BRIDGE_MESSAGE = 16 << 20, /* and in one message */
	BRIDGE_OUT_MAX = 64 << 10, /* bytes of attachments and acknowledgements that wait for a channel */
};

/* What epoll's data points to. */
enum watch_kind { WATCH_LINE, WATCH_CHANNEL, WATCH_CONTROL, WATCH_LISTENER, WATCH_EXPECTING };
struct watch {
	enum watch_kind kind;
	void *owner;
};

/* A record of ours, as the frame that goes out. */
struct record {
	struct record *next;
	uint64_t number;
	size_t weight; /* what it counts in the window */
	size_t len;
	uint8_t *frame;
};
/* A record of the other side's that is not delivered yet. */
struct arrival {
	struct arrival *next;
	Pbeam__BridgeRecord *record;
};

/* Of a UDP port's float: who has sent to the port at its old place is this socket to the program. */
struct stand_in {
	struct stand_in *next;
	int fd;
	uint64_t used;			    /* when it was, in the order of all */
	union name_sockaddr source, called; /* its real address, and what the program is told */
	bool named;
	bool passing; /* what came for it is answered directly */
};

struct line {
	struct line *next;
	struct bridge *bridge;
	struct watch watch;
	struct channel *channel; /* NULL: none at the moment */
	Pbeam__BridgeLine *about;
	uint64_t id, ino, skip;
	int fd;
	bool anchor;
	bool socket;		 /* fd is one: else a pipe */
	bool reads, writes;	 /* directions of fd that are open */
	bool readable, writable; /* as far as we know */
	bool closing;		 /* CLOSE or RESET was sent: nothing of ours follows */
	bool over;		 /* nothing more to do but to have the log acknowledged */
	bool held;		 /* stands still */
	bool moved;		 /* is another bridge's now: what still comes is not ours to acknowledge */
	bool taken;		 /* and its state was given away */
	const struct control *holder; /* for this coordinator */
	bool fresh;		      /* the program has not accepted it yet, as far as we know */
	bool ended;		      /* we have sent END */
	bool attaching;		      /* the anchor has not answered yet: nothing is sent */
	uint32_t generation;	      /* how often the program has moved with it */
	unsigned turn;		      /* of bridge->turn, when it last sent */
	bool named;		      /* the name table has the address of the caller */
	const struct line *of;	      /* its listener */
	uint64_t opened;	      /* the anchor's: number of the listener's record that announces it */
	uint64_t lost_ns;	      /* since when there is no channel */
	uint64_t made_ns;
	uint64_t called_ns; /* a listener's: time of the last call */
	struct stand_in *stand_ins;
	struct line_terminal *terminal; /* terminal.c; NULL: none, or not begun */
	struct pty_bytes typed;		/* an anchor's terminal: dumped with the program */
	struct control *waiter;		/* waits until nothing is under way any more */
	uint64_t stand_ins_used;

	struct record *head, *tail, *unsent;
	uint64_t next_number;
	size_t weight;

	struct arrival *first, *last;
	uint64_t expected;  /* the number that comes next */
	uint64_t delivered; /* records below it are */
	uint64_t acked;	    /* and the other side was told of these */
	uint64_t partial;   /* bytes of `first` that are written already */
	size_t waiting;	    /* bytes in `first` and after it */
};

/* A channel to another bridge. */
struct channel {
	struct channel *next;
	struct bridge *bridge;
	struct watch watch;
	int sock;
	uint8_t cookie[BRIDGE_COOKIE]; /* of the anchor, where we are the float */
	char host[64];
	bool ours; /* we made it and make it again */
	bool writable;
	uint64_t retry_ns, lost_ns;
	struct frame_reader reader;
	uint8_t *out; /* the frame that is going out */
	size_t out_len, out_done;
	uint8_t *control; /* frames that go before records */
	size_t control_len;
};

/* A coordinator. */
struct control {
	struct control *next;
	struct bridge *bridge;
	struct watch watch;
	int sock;
	bool dead;
	struct frame_reader reader;
};

struct bridge {
	uint8_t cookie[BRIDGE_COOKIE];
	char path[4096];
	struct names *names; /* or NULL */
	int epoll, listener, expecting;
	struct watch listener_watch, expecting_watch;
	struct line *lines;
	struct channel *channels;
	struct control *controls;
	uint64_t next_id;
	unsigned turn;
	bool started; /* by a coordinator, whose copy of it this is */
	bool changed; /* the text beside the socket has to be written */
};

/* ---- bridge_line.c: logs ---- */
struct line *line_new(struct bridge *bridge, const Pbeam__BridgeLine *about, int fd, bool anchor);
void line_free_log(struct line *line);
/* Each anchor gives numbers of its own: a float's line is one of the channel. */
struct line *line_find(struct bridge *bridge, const struct channel *channel, uint64_t id);
/* Appends to the log. -ENOMEM. */
must_check int line_append(struct line *line, Pbeam__BridgeRecord__Kind kind, const void *data, size_t len,
			   const struct sockaddr *from, socklen_t from_len, const Pbeam__BridgeLine *opened);
/* The other side has delivered all below `number`. */
void line_acked(struct line *line, uint64_t number);
/* Sends again from `number` on. */
void line_rewind(struct line *line, uint64_t number);
/* Takes a record that has come. 0, or -EPROTO for one that should not have. */
must_check int line_arrived(struct line *line, Pbeam__BridgeRecord *record);
void line_drop_arrivals(struct line *line);
/* The record in a frame of a log that came; NULL if it is none. */
Pbeam__BridgeRecord *line_record(const ProtobufCBinaryData *frame);
/* Appends a frame of the log that came with the program. */
must_check int line_append_frame(struct line *line, const uint8_t *frame, size_t len, uint64_t number);
/* It is not of this bridge any more: its end is not sent. */
void line_forget(struct line *line);
/* Ends it at once on this side. */
void line_reset(struct line *line);
/* The inode of a socket of ours. */
uint64_t line_socket_ino(int fd);
/* Nothing is left to do for it. */
bool line_finished(const struct line *line);
/* Its state for elsewhere; NULL without memory. */
Pbeam__BridgeLine *line_describe(const struct line *line, bool whole);

/* ---- pump.c: between the descriptor and the logs ---- */
/* As much as goes, both ways. */
void line_pump(struct line *line);
/* All that is in the descriptor, whatever the window says: for a line that moves on. */
void line_drain(struct line *line);
/* What can only be asked: whether the program has closed its end. Once in a while. */
void line_look(struct line *line);
/* True if line_look() is of use. */
bool line_wants_look(const struct line *line);

/* ---- bridge_accept.c: listeners ---- */
/* The anchor's: connections from outside become lines. */
void listener_accept(struct line *line);
/* The float's: a line that the anchor has opened is connected to the program. False: not yet, the program has
 * too many waiting. */
bool listener_connect(struct line *listener, const Pbeam__BridgeLine *opened);
/* The name table is to know no more of it. */
void listener_forget(struct line *line);
/* The program has this fresh one now. */
bool listener_accepted(struct line *line);

/* ---- bridge_port.c: UDP ports with many callers, the float's side ---- */
bool line_is_port(const struct line *line);
/* To the program, from the stand-in of `from`. As sendmsg(), with -errno. */
ssize_t port_send(struct line *line, const void *data, size_t len, const ProtobufCBinaryData *from);
/* What the program has sent to any of them: the bytes, or -EAGAIN. */
ssize_t port_take(struct line *line, void *data, size_t room, struct sockaddr_storage *to, socklen_t *to_len);
must_check int port_watch(struct line *line);
bool port_has(const struct line *line, int fd);
void port_free(struct line *line);

/* ---- terminal.c: pseudo-terminals ---- */
bool line_is_terminal(const struct line *line);
/* The bridge runs. -ENOMEM. */
must_check int terminal_begin(struct line *line);
/* Of an anchor, before: what was typed since the program was dumped is on its way to it. -errno. */
must_check int terminal_depart(struct line *line);
/* The line is about to end: the settings are the program's again. */
void terminal_end(struct line *line);
/* Tells the other side what has changed. True if something had. */
bool terminal_look(struct line *line);
/* What the other side has told. */
void terminal_apply(struct line *line, const Pbeam__BridgeRecord *record);
/* `result` of a read, 0 or -errno, is the terminal's end. */
bool terminal_ended(struct line *line, ssize_t result);

/* ---- channel.c ---- */
struct channel *channel_add(struct bridge *bridge, int sock);
void channel_free(struct channel *channel);
/* The float's channel to the anchor of this line, made or tried again later. */
void channel_for(struct line *line);
void channel_retry(struct channel *channel);
void channel_lost(struct channel *channel);
/* Puts a small frame before the records. */
void channel_tell(struct channel *channel, uint32_t type, const ProtobufCMessage *message);
void channel_attach(struct line *line);
void channel_acknowledge(struct line *line);
void channel_output(struct channel *channel);
void channel_input(struct channel *channel);

/* ---- control.c ---- */
void control_accept(struct bridge *bridge);
void control_input(struct control *control);
void control_free(struct control *control);
/* Replies to the waiter of the line if it is time. */
void control_settled(struct line *line);
/* RUNTIME/bridge/COOKIE; `buf` of 4096 bytes. */
must_check int control_path(const uint8_t *cookie, char *buf, struct err *err);
void control_describe(struct bridge *bridge);

/* ---- bridge.c ---- */
/* For a child: only `back` and the log stay open. */
void bridge_close_all_but(int back);
must_check int bridge_watch(struct bridge *bridge, int fd, struct watch *watch, uint32_t events);

#endif
