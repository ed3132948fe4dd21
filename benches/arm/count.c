// A plugin for QEMU 7.2 and later that counts the instructions which a program runs. Its functions are
// declared here, since Debian ships no header.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct qemu_plugin_tb;
int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t, void (*)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
void qemu_plugin_register_atexit_cb(uint64_t, void (*)(uint64_t, void *), void *);

static uint64_t count;

static void translated(uint64_t id, struct qemu_plugin_tb *block) {
    (void)id;
    enum { ADD_U64 = 0 };
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &count, qemu_plugin_tb_n_insns(block));
}

static void ends(uint64_t id, void *nothing) {
    (void)id, (void)nothing;
    fprintf(stderr, "%llu instructions\n", (unsigned long long)count);
}

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv) {
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ends, NULL);
    return 0;
}
