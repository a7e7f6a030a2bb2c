/* A read that its client orders behind its own writes of the same object is executed and answered
 * behind them, and sees them. Two large writes, a setxattr and a read are sent at once to each
 * object; the program prints how many objects of 400 answered in another order, or read something
 * else than the last write.
 *
 *   cc -o ordered-read ordered-read.c -lrados -lpthread
 *   ordered-read CONF POOL FLAGS        4: LIBRADOS_OPERATION_ORDER_READS_WRITES, 0: none
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is used of librados.h, so that its package is not needed to build this. */
typedef void *rados_t, *rados_ioctx_t, *rados_completion_t, *rados_read_op_t;
typedef void (*rados_callback_t)(rados_completion_t, void *);
int rados_create(rados_t *, const char *);
int rados_conf_read_file(rados_t, const char *);
int rados_connect(rados_t);
void rados_shutdown(rados_t);
int rados_ioctx_create(rados_t, const char *, rados_ioctx_t *);
int rados_aio_create_completion2(void *, rados_callback_t, rados_completion_t *);
int rados_aio_wait_for_complete_and_cb(rados_completion_t);
int rados_aio_get_return_value(rados_completion_t);
void rados_aio_release(rados_completion_t);
int rados_aio_write(rados_ioctx_t, const char *, rados_completion_t, const char *, size_t,
                    uint64_t);
int rados_aio_setxattr(rados_ioctx_t, const char *, rados_completion_t, const char *, const char *,
                       size_t);
rados_read_op_t rados_create_read_op(void);
void rados_read_op_read(rados_read_op_t, uint64_t, size_t, char *, size_t *, int *);
int rados_aio_read_op_operate(rados_read_op_t, rados_ioctx_t, rados_completion_t, const char *,
                              int);
void rados_release_read_op(rados_read_op_t);

enum { OBJECTS = 400, AT_ONCE = 8, OPS = 4, PIECE = 256, AT = 400000 };

struct answers {
    int n, order[OPS];
    pthread_mutex_t lock;
};
struct asked {
    struct answers *answers;
    int number;
};

static void answered(rados_completion_t c, void *arg) {
    struct asked *a = arg;
    (void)c;
    pthread_mutex_lock(&a->answers->lock);
    a->answers->order[a->answers->n++] = a->number;
    pthread_mutex_unlock(&a->answers->lock);
}

int main(int argc, char **argv) {
    rados_t cluster;
    rados_ioctx_t io;
    static char data[AT_ONCE][500000], got[AT_ONCE][PIECE];
    int disordered = 0, stale = 0, failed = 0, flags = argc > 3 ? atoi(argv[3]) : 4;
    if (argc < 3 || rados_create(&cluster, "admin") || rados_conf_read_file(cluster, argv[1]) ||
        rados_connect(cluster) || rados_ioctx_create(cluster, argv[2], &io)) {
        fprintf(stderr, "usage: ordered-read CONF POOL FLAGS; cluster and pool must be there\n");
        return 2;
    }
    srandom(1);
    for (int i = 0; i < OBJECTS; i += AT_ONCE) {
        struct answers answers[AT_ONCE];
        struct asked asked[AT_ONCE][OPS];
        rados_completion_t done[AT_ONCE][OPS];
        size_t length[AT_ONCE];
        int result[AT_ONCE];
        for (int j = 0; j < AT_ONCE; j++) {
            char name[32];
            memset(&answers[j], 0, sizeof answers[j]);
            memset(got[j], 0, PIECE);
            memset(data[j], 1 + (i + j) % 250, sizeof data[j]);
            length[j] = 0, result[j] = 0;
            pthread_mutex_init(&answers[j].lock, 0);
            snprintf(name, sizeof name, "object-%d", i + j);
            for (int t = 0; t < OPS; t++) {
                asked[j][t] = (struct asked){&answers[j], t + 1};
                rados_aio_create_completion2(&asked[j][t], answered, &done[j][t]);
            }
            rados_aio_write(io, name, done[j][0], data[j], AT + random() % 90000, 1500000);
            rados_aio_write(io, name, done[j][1], data[j], AT + random() % 90000, AT);
            rados_aio_setxattr(io, name, done[j][2], "header", data[j], 100);
            rados_read_op_t read = rados_create_read_op();
            rados_read_op_read(read, AT, PIECE, got[j], &length[j], &result[j]);
            rados_aio_read_op_operate(read, io, done[j][3], name, flags);
            rados_release_read_op(read);
        }
        for (int j = 0; j < AT_ONCE; j++) {
            int in_order = 1;
            for (int t = 0; t < OPS; t++) {
                rados_aio_wait_for_complete_and_cb(done[j][t]);
                failed += rados_aio_get_return_value(done[j][t]) < 0;
                rados_aio_release(done[j][t]);
            }
            for (int t = 1; t < OPS; t++)
                in_order &= answers[j].order[t] > answers[j].order[t - 1];
            disordered += !in_order;
            stale += length[j] != PIECE || memcmp(got[j], data[j], PIECE) != 0;
        }
    }
    rados_shutdown(cluster);
    printf("%d out of order, %d stale, %d failed, of %d\n", disordered, stale, failed, OBJECTS);
    return disordered || stale || failed;
}
