"""The recurrences' step, plain and replayed, and the folding of a ring, as Triton kernels (launch.py calls them).

A program works on one head of one row and a block of the value columns, which do not depend on each other. A ring's
records are taken together: with A the decay of all of them and W_j that of the steps after j, the state before the
token is Diag(A) S0 + sum_j (W_j * k_j) d_j^T, of which reads need no more than the products of q and k with the
weighted keys. Those are the same for all columns (and heads, where decay is one number): a small kernel makes them
first, and where the device can, the other starts beside it and waits only before it takes them (DEPENDENT). Sums are
in fp32, and slots and ring rows, as factors of addresses, have 64 bits.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _columns(place, HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_V: tl.constexpr):
    """Group, head and value columns of a program."""
    BLOCKS: tl.constexpr = (VALUE_DIM + BLOCK_V - 1) // BLOCK_V
    columns = place % BLOCKS * BLOCK_V + tl.arange(0, BLOCK_V)
    return place // BLOCKS // HEADS, place // BLOCKS % HEADS, columns


@triton.jit
def _sums(q_sums, k_sums, CORRECTED: tl.constexpr):
    """Both summed over keys, the second where it is of use: in one, because programs wait for each other in each."""
    if CORRECTED:
        q_read, k_read = tl.split(tl.sum(tl.join(q_sums, k_sums), 0))
    else:
        q_read = tl.sum(q_sums, 0)
        k_read = q_read
    return q_read, k_read


@triton.jit
def _times(state, decay, VECTOR_DECAY: tl.constexpr):
    """Diag(decay) S."""
    if VECTOR_DECAY:
        state *= decay[:, None]
    else:
        state *= decay
    return state


@triton.jit
def _total(ring_g, cursor, head, keys, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VECTOR_DECAY: tl.constexpr):
    """Log A: the sum of log decays that the last record keeps."""
    at_last = (cursor - 1) * HEADS + head
    if VECTOR_DECAY:
        total = tl.load(ring_g + at_last * KEY_DIM + keys, mask=(keys < KEY_DIM) & (cursor > 0), other=0.0)
    else:
        total = tl.load(ring_g + at_last, mask=cursor > 0, other=0.0)
    return total


@triton.jit
def _past_keys(
    ring_k, ring_g, cursor, total, head, keys,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, RING: tl.constexpr, VECTOR_DECAY: tl.constexpr,
):  # fmt: skip
    """Keys [RING, keys] of a ring, zero from the cursor on; weighted by W_j where that is a vector."""
    records = tl.arange(0, RING)
    there = (records < cursor)[:, None] & (keys < KEY_DIM)[None, :]
    k = tl.load(ring_k + records[:, None] * KEY_DIM + keys[None, :], mask=there, other=0.0).to(tl.float32)
    if VECTOR_DECAY:
        g_at = ring_g + (records[:, None] * HEADS + head) * KEY_DIM + keys[None, :]
        k *= tl.exp(total[None, :] - tl.load(g_at, mask=there, other=0.0))
    return k


@triton.jit
def _past_corrections(
    ring_d, ring_g, cursor, total, head, columns,
    HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, RING: tl.constexpr, VECTOR_DECAY: tl.constexpr,
):  # fmt: skip
    """Corrections [RING, columns] of a ring, zero from the cursor on; weighted by W_j where that is one number."""
    records = tl.arange(0, RING)
    held = records < cursor
    d_at = ring_d + (records[:, None] * HEADS + head) * VALUE_DIM + columns[None, :]
    d = tl.load(d_at, mask=held[:, None] & (columns < VALUE_DIM)[None, :], other=0.0).to(tl.float32)
    if not VECTOR_DECAY:
        d *= tl.exp(total - tl.load(ring_g + records * HEADS + head, mask=held, other=0.0))[:, None]
    return d


@triton.jit
def step_kernel(
    query, key, value, log_decay, beta, skip, out, matrix, slots,
    query_row, query_group, key_row, key_group, value_row, value_group, matrix_slot, matrix_group,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    VECTOR_DECAY: tl.constexpr, CORRECTED: tl.constexpr, SKIP: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One token a row, every matrix written. Rows of the sink or of no slot read zeros and touch no state."""
    row = tl.program_id(1).to(tl.int64)
    group, head, columns = _columns(tl.program_id(0), HEADS, VALUE_DIM, BLOCK_V)
    keys = tl.arange(0, BLOCK_K)
    in_keys = keys < KEY_DIM
    in_columns = columns < VALUE_DIM
    at_head = (row * GROUPS + group) * HEADS + head
    out_at = out + at_head * VALUE_DIM + columns
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 1:
        tl.store(out_at, tl.zeros([BLOCK_V], out.dtype.element_ty), mask=in_columns)
        return
    state_at = matrix + slot * matrix_slot + group * matrix_group + head * KEY_DIM * VALUE_DIM
    state_at = state_at + keys[:, None] * VALUE_DIM + columns[None, :]
    in_state = in_keys[:, None] & in_columns[None, :]
    state = tl.load(state_at, mask=in_state, other=0.0)
    q = tl.load(query + row * query_row + group * query_group + keys, mask=in_keys, other=0.0).to(tl.float32)
    k = tl.load(key + row * key_row + group * key_group + keys, mask=in_keys, other=0.0).to(tl.float32)
    v_at = value + row * value_row + group * value_group + head * VALUE_DIM + columns
    v = tl.load(v_at, mask=in_columns, other=0.0).to(tl.float32)
    b = tl.load(beta + at_head).to(tl.float32)
    if VECTOR_DECAY:
        decay = tl.exp(tl.load(log_decay + at_head * KEY_DIM + keys, mask=in_keys, other=0.0))
    else:
        decay = tl.exp(tl.load(log_decay + at_head))
    state = _times(state, decay, VECTOR_DECAY)
    # Both reads are of the decayed state before the token: S_t^T q = (a S_{t-1})^T q + (k . q) d.
    q_read, k_read = _sums(state * q[:, None], state * k[:, None], CORRECTED)
    if CORRECTED:
        d = b * (v - k_read)
    else:
        d = b * v
    tl.store(state_at, state + k[:, None] * d[None, :], mask=in_state)
    read = q_read + tl.sum(q * k, 0) * d
    if SKIP:
        read += tl.load(skip + group * HEADS + head) * v
    tl.store(out_at, read.to(out.dtype.element_ty), mask=in_columns)


@triton.jit
def products_kernel(
    query, key, log_decay, products, ring_k, ring_g, slots, rings, cursors, flush,
    query_row, query_group, key_row, key_group, k_ring, k_group, g_ring, g_group,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, LENGTH: tl.constexpr, RING: tl.constexpr,
    VECTOR_DECAY: tl.constexpr, CORRECTED: tl.constexpr, DEPENDENT: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Products of q and k with the weighted keys of a ring, [row, group, 2, RING]; with vectors of decay, of q and k
    decayed, [row, group, head, 2, RING]. Rows that do not flush get the token's key and such vectors into their rings.

    A program has a group or, with vectors, a head.
    """
    if DEPENDENT:
        gdc_launch_dependents()
    PLACES: tl.constexpr = HEADS if VECTOR_DECAY else 1
    place = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    group = place // PLACES
    head = place % PLACES
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 1:
        return
    ring = tl.load(rings + row).to(tl.int64)
    cursor = tl.load(cursors + slot)
    keys = tl.arange(0, BLOCK_K)
    in_keys = keys < KEY_DIM
    q = tl.load(query + row * query_row + group * query_group + keys, mask=in_keys, other=0.0).to(tl.float32)
    k = tl.load(key + row * key_row + group * key_group + keys, mask=in_keys, other=0.0).to(tl.float32)
    k_base = ring_k + ring * k_ring + group * k_group
    g_base = ring_g + ring * g_ring + group * g_group
    total = _total(g_base, cursor, head, keys, HEADS, KEY_DIM, VECTOR_DECAY)
    past_k = _past_keys(k_base, g_base, cursor, total, head, keys, HEADS, KEY_DIM, RING, VECTOR_DECAY)
    if VECTOR_DECAY:
        g = tl.load(log_decay + ((row * GROUPS + group) * HEADS + head) * KEY_DIM + keys, mask=in_keys, other=0.0)
        decay = tl.exp(g)
        past_k *= decay[None, :]
    at = products + (row * GROUPS * PLACES + place) * 2 * RING + tl.arange(0, RING)
    tl.store(at, tl.sum(past_k * q[None, :], 1))
    if CORRECTED:
        tl.store(at + RING, tl.sum(past_k * k[None, :], 1))
    if (tl.load(flush + row) == 0) & (cursor < LENGTH - 1):
        if head == 0:
            tl.store(k_base + cursor * KEY_DIM + keys, k.to(ring_k.dtype.element_ty), mask=in_keys)
        if VECTOR_DECAY:
            tl.store(g_base + (cursor * HEADS + head) * KEY_DIM + keys, total + g, mask=in_keys)


@triton.jit
def replay_kernel(
    query, key, value, log_decay, beta, skip, products, out,
    matrix, ring_d, ring_k, ring_g, slots, rings, cursors, flush,
    query_row, query_group, key_row, key_group, value_row, value_group,
    matrix_slot, matrix_group, d_ring, d_group, k_ring, k_group, g_ring, g_group,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    LENGTH: tl.constexpr, RING: tl.constexpr,
    VECTOR_DECAY: tl.constexpr, CORRECTED: tl.constexpr, SKIP: tl.constexpr, DEPENDENT: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, READ_K: tl.constexpr, FOLD_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """As step_kernel, of matrices and the records since; after products_kernel. A row that flushes writes its matrix,
    any other its correction (and, where it is one number, its log decay).
    """
    PLACES: tl.constexpr = HEADS if VECTOR_DECAY else 1
    row = tl.program_id(1).to(tl.int64)
    group, head, columns = _columns(tl.program_id(0), HEADS, VALUE_DIM, BLOCK_V)
    in_columns = columns < VALUE_DIM
    at_head = (row * GROUPS + group) * HEADS + head
    out_at = out + at_head * VALUE_DIM + columns
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 1:
        if DEPENDENT:
            # Whoever comes after this kernel counts on the one before it.
            gdc_wait()
        tl.store(out_at, tl.zeros([BLOCK_V], out.dtype.element_ty), mask=in_columns)
        return
    base = matrix + slot * matrix_slot + group * matrix_group + head * KEY_DIM * VALUE_DIM
    q_at = query + row * query_row + group * query_group
    k_at = key + row * key_row + group * key_group
    v_at = value + row * value_row + group * value_group + head * VALUE_DIM + columns
    v = tl.load(v_at, mask=in_columns, other=0.0).to(tl.float32)
    b = tl.load(beta + at_head).to(tl.float32)
    ring = tl.load(rings + row).to(tl.int64)
    cursor = tl.load(cursors + slot)
    d_base = ring_d + ring * d_ring + group * d_group
    k_base = ring_k + ring * k_ring + group * k_group
    g_base = ring_g + ring * g_ring + group * g_group
    g_at = log_decay + at_head * KEY_DIM
    at = products + ((row * GROUPS + group) * PLACES + head % PLACES) * 2 * RING + tl.arange(0, RING)

    # In parts, which are not kept: a matrix in registers would leave room for fewer programs beside each other.
    part = tl.arange(0, READ_K)
    q_sums = tl.zeros([READ_K, BLOCK_V], tl.float32)
    k_sums = tl.zeros([READ_K, BLOCK_V], tl.float32)
    overlap = tl.zeros([READ_K], tl.float32)
    for first in tl.static_range(0, BLOCK_K, READ_K):
        keys = first + part
        in_keys = keys < KEY_DIM
        state_at = base + keys[:, None] * VALUE_DIM + columns[None, :]
        state = tl.load(state_at, mask=in_keys[:, None] & in_columns[None, :], other=0.0)
        q = tl.load(q_at + keys, mask=in_keys, other=0.0).to(tl.float32)
        k = tl.load(k_at + keys, mask=in_keys, other=0.0).to(tl.float32)
        overlap += q * k
        if VECTOR_DECAY:
            total = _total(g_base, cursor, head, keys, HEADS, KEY_DIM, VECTOR_DECAY)
            fall = tl.exp(total + tl.load(g_at + keys, mask=in_keys, other=0.0))
            q *= fall
            k *= fall
        q_sums += state * q[:, None]
        if CORRECTED:
            k_sums += state * k[:, None]
    q_read, k_read = _sums(q_sums, k_sums, CORRECTED)
    total = _total(g_base, cursor, head, part, HEADS, KEY_DIM, VECTOR_DECAY)
    past_d = _past_corrections(d_base, g_base, cursor, total, head, columns, HEADS, VALUE_DIM, RING, VECTOR_DECAY)
    if DEPENDENT:
        gdc_wait()
    q_past = tl.sum(past_d * tl.load(at)[:, None], 0)
    k_past = q_past
    if CORRECTED:
        k_past = tl.sum(past_d * tl.load(at + RING)[:, None], 0)
    g = total
    # What is one number multiplies sums, what is a vector the probes.
    if VECTOR_DECAY:
        q_read += q_past
        k_read += k_past
    else:
        g = tl.load(log_decay + at_head)
        decay = tl.exp(g)
        whole = tl.exp(total)
        q_read = decay * (whole * q_read + q_past)
        k_read = decay * (whole * k_read + k_past)
    if CORRECTED:
        d = b * (v - k_read)
    else:
        d = b * v
    read = q_read + tl.sum(overlap, 0) * d
    if SKIP:
        read += tl.load(skip + group * HEADS + head) * v
    tl.store(out_at, read.to(out.dtype.element_ty), mask=in_columns)

    if (tl.load(flush + row) != 0) | (cursor >= LENGTH - 1):
        # In parts, read again while the cache has them: registers for the whole would be lost to every other row.
        for start in range(0, KEY_DIM, FOLD_K):
            fold = start + tl.arange(0, FOLD_K)
            in_fold = fold < KEY_DIM
            fold_at = base + fold[:, None] * VALUE_DIM + columns[None, :]
            in_state = in_fold[:, None] & in_columns[None, :]
            fold_total = _total(g_base, cursor, head, fold, HEADS, KEY_DIM, VECTOR_DECAY)
            past_k = _past_keys(k_base, g_base, cursor, fold_total, head, fold, HEADS, KEY_DIM, RING, VECTOR_DECAY)
            folded = _times(tl.load(fold_at, mask=in_state, other=0.0), tl.exp(fold_total), VECTOR_DECAY)
            folded += tl.dot(tl.trans(past_k), past_d, input_precision=PRECISION)
            if VECTOR_DECAY:
                folded = _times(folded, tl.exp(tl.load(g_at + fold, mask=in_fold, other=0.0)), VECTOR_DECAY)
            else:
                folded = _times(folded, decay, VECTOR_DECAY)
            fold_k = tl.load(k_at + fold, mask=in_fold, other=0.0).to(tl.float32)
            tl.store(fold_at, folded + fold_k[:, None] * d[None, :], mask=in_state)
    else:
        at_record = cursor * HEADS + head
        tl.store(d_base + at_record * VALUE_DIM + columns, d.to(ring_d.dtype.element_ty), mask=in_columns)
        if not VECTOR_DECAY:
            # Every block of columns writes the same number: none of them reads it.
            tl.store(g_base + at_record, total + g)


@triton.jit
def fold_kernel(
    matrix, ring_d, ring_k, ring_g, slots, rings, cursors,
    matrix_slot, matrix_group, d_ring, d_group, k_ring, k_group, g_ring, g_group,
    HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, RING: tl.constexpr,
    VECTOR_DECAY: tl.constexpr, BLOCK_V: tl.constexpr, FOLD_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Folds the rings of some slots into their matrices; a slot without records is not written."""
    group, head, columns = _columns(tl.program_id(0), HEADS, VALUE_DIM, BLOCK_V)
    slot = tl.load(slots + tl.program_id(1)).to(tl.int64)
    if slot < 1:
        return
    cursor = tl.load(cursors + slot)
    if cursor == 0:
        return
    ring = tl.load(rings + tl.program_id(1)).to(tl.int64)
    base = matrix + slot * matrix_slot + group * matrix_group + head * KEY_DIM * VALUE_DIM
    d_base = ring_d + ring * d_ring + group * d_group
    k_base = ring_k + ring * k_ring + group * k_group
    g_base = ring_g + ring * g_ring + group * g_group
    any_keys = tl.arange(0, FOLD_K)
    total = _total(g_base, cursor, head, any_keys, HEADS, KEY_DIM, VECTOR_DECAY)
    past_d = _past_corrections(d_base, g_base, cursor, total, head, columns, HEADS, VALUE_DIM, RING, VECTOR_DECAY)
    for start in range(0, KEY_DIM, FOLD_K):
        part = start + any_keys
        part_at = base + part[:, None] * VALUE_DIM + columns[None, :]
        in_state = (part < KEY_DIM)[:, None] & (columns < VALUE_DIM)[None, :]
        part_total = _total(g_base, cursor, head, part, HEADS, KEY_DIM, VECTOR_DECAY)
        past_k = _past_keys(k_base, g_base, cursor, part_total, head, part, HEADS, KEY_DIM, RING, VECTOR_DECAY)
        state = _times(tl.load(part_at, mask=in_state, other=0.0), tl.exp(part_total), VECTOR_DECAY)
        state += tl.dot(tl.trans(past_k), past_d, input_precision=PRECISION)
        tl.store(part_at, state, mask=in_state)


@triton.jit
def advance_kernel(cursors, slots, flush, rows, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """Moves the cursors of a step's slots on; one program, so that a slot named twice still moves on once."""
    at = tl.arange(0, BLOCK)
    slot = tl.load(slots + at, mask=at < rows, other=0)
    live = slot > 0
    cursor = tl.load(cursors + slot, mask=live, other=0)
    flushed = (tl.load(flush + at, mask=live, other=0) != 0) | (cursor >= LENGTH - 1)
    tl.debug_barrier()
    tl.store(cursors + slot, tl.where(flushed, 0, cursor + 1), mask=live)


@triton.jit
def reset_kernel(cursors, slots, rows, BLOCK: tl.constexpr):
    """Sets the cursors of some slots to 0."""
    at = tl.arange(0, BLOCK)
    slot = tl.load(slots + at, mask=at < rows, other=0)
    tl.store(cursors + slot, tl.zeros([BLOCK], tl.int32), mask=slot > 0)
