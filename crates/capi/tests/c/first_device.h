/* The device that the programs of this folder use, and how they give up. */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

enum {
	PORT = 1,
	RW = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
	     IBV_ACCESS_REMOTE_ATOMIC,
};

static inline void die(const char *what)
{
	perror(what);
	exit(2);
}

/* Opens the first device. */
static inline struct ibv_context *open_first_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	if (!list || !list[0])
		die("no device");
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	if (!context)
		die("ibv_open_device");
	return context;
}
