//! Matrices over the field, and the generator matrices of Ceph's plugins.

use crate::field::{inverse, mul};

/// A matrix of field elements, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    cells: Vec<u8>,
}

impl Matrix {
    /// All zeroes.
    pub fn zero(rows: usize, columns: usize) -> Matrix {
        Matrix { rows, columns, cells: vec![0; rows * columns] }
    }

    /// From a function of row and column.
    pub fn from_fn(
        rows: usize,
        columns: usize,
        mut cell: impl FnMut(usize, usize) -> u8,
    ) -> Matrix {
        let mut m = Matrix::zero(rows, columns);
        for r in 0..rows {
            for c in 0..columns {
                m.set(r, c, cell(r, c));
            }
        }
        m
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One element.
    pub fn get(&self, row: usize, column: usize) -> u8 {
        self.row(row)[column]
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[u8] {
        &self.cells[row * self.columns..][..self.columns]
    }

    fn set(&mut self, row: usize, column: usize, value: u8) {
        self.cells[row * self.columns + column] = value;
    }

    /// The rows named, in that order.
    pub fn select(&self, rows: impl IntoIterator<Item = usize>) -> Matrix {
        let mut cells = Vec::new();
        let mut n = 0;
        for r in rows {
            cells.extend_from_slice(self.row(r));
            n += 1;
        }
        Matrix { rows: n, columns: self.columns, cells }
    }

    /// `self * other`; `other` has as many rows as `self` has columns.
    pub fn product(&self, other: &Matrix) -> Matrix {
        assert_eq!(self.columns, other.rows, "factors do not fit each other");
        Matrix::from_fn(self.rows, other.columns, |r, c| {
            (0..self.columns).fold(0, |sum, i| sum ^ mul(self.get(r, i), other.get(i, c)))
        })
    }

    /// The inverse of a square matrix; `None` if there is none.
    pub fn inverse(&self) -> Option<Matrix> {
        assert_eq!(self.rows, self.columns, "only square matrices have inverses");
        let n = self.rows;
        let mut left = self.clone();
        let mut right = Matrix::from_fn(n, n, |r, c| u8::from(r == c));
        for i in 0..n {
            let pivot = (i..n).find(|&r| left.get(r, i) != 0)?;
            left.swap_rows(i, pivot);
            right.swap_rows(i, pivot);
            let scale = inverse(left.get(i, i))?;
            left.scale_row(i, scale);
            right.scale_row(i, scale);
            for r in (0..n).filter(|&r| r != i) {
                let factor = left.get(r, i);
                left.add_row(r, i, factor);
                right.add_row(r, i, factor);
            }
        }
        Some(right)
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        for c in 0..self.columns {
            self.cells.swap(a * self.columns + c, b * self.columns + c);
        }
    }

    fn scale_row(&mut self, row: usize, factor: u8) {
        for c in 0..self.columns {
            self.set(row, c, mul(self.get(row, c), factor));
        }
    }

    /// Adds `factor` times a row to another.
    fn add_row(&mut self, to: usize, from: usize, factor: u8) {
        for c in 0..self.columns {
            self.set(to, c, self.get(to, c) ^ mul(self.get(from, c), factor));
        }
    }

    fn scale_column(&mut self, column: usize, factor: u8, rows: std::ops::Range<usize>) {
        for r in rows {
            self.set(r, column, mul(self.get(r, column), factor));
        }
    }

    /// Adds `factor` times a column to another.
    fn add_column(&mut self, to: usize, from: usize, factor: u8) {
        for r in 0..self.rows {
            self.set(r, to, self.get(r, to) ^ mul(self.get(r, from), factor));
        }
    }

    /// The generator of jerasure's `reed_sol_van` (`reed_sol_vandermonde_coding_matrix` of jerasure
    /// 2.0, `reed_sol.c`): `k + m` rows of `k`, of which the first `k` are the identity.
    ///
    /// An extended Vandermonde matrix (row `i` holds powers of `i`, the last row is the last unit
    /// vector) becomes systematic by operations on columns. Then columns are scaled so that the
    /// first row of parity is ones, and the other rows of parity so that each begins with one.
    pub fn jerasure_reed_sol_van(k: usize, m: usize) -> Matrix {
        let rows = k + m;
        let mut g = Matrix::from_fn(rows, k, |r, c| {
            if r == rows - 1 {
                u8::from(c == k - 1)
            } else {
                (0..c).fold(1, |power, _| mul(power, r as u8))
            }
        });
        for i in 1..k {
            let scale = inverse(g.get(i, i)).expect("rows of a Vandermonde matrix are independent");
            g.scale_column(i, scale, 0..rows);
            for c in (0..k).filter(|&c| c != i) {
                let factor = g.get(i, c);
                g.add_column(c, i, factor);
            }
        }
        for c in 0..k {
            let scale = inverse(g.get(k, c)).expect("parity depends on each data shard");
            g.scale_column(c, scale, k..rows);
        }
        for r in k + 1..rows {
            let scale = inverse(g.get(r, 0)).expect("parity depends on each data shard");
            g.scale_row(r, scale);
        }
        g
    }

    /// The generator of isa's `reed_sol_van` (`gf_gen_rs_matrix` of ISA-L, `ec_base.c`): row `i` of
    /// parity holds powers of `2^i`.
    pub fn isa_reed_sol_van(k: usize, m: usize) -> Matrix {
        let power = |base: u8, n: usize| (0..n).fold(1, |p, _| mul(p, base));
        Matrix::from_fn(k + m, k, |r, c| match r.checked_sub(k) {
            None => u8::from(r == c),
            Some(i) => power(power(2, i), c),
        })
    }

    /// The generator of isa's `cauchy` (`gf_gen_cauchy1_matrix` of ISA-L, `ec_base.c`): row `i` of
    /// the whole matrix holds `1 / (i ^ j)`. One row of parity is ones instead: the plugin XORs
    /// where `m` is 1 (`ErasureCodeIsaDefault::isa_encode`).
    pub fn isa_cauchy(k: usize, m: usize) -> Matrix {
        Matrix::from_fn(k + m, k, |r, c| {
            if r < k {
                u8::from(r == c)
            } else if m == 1 {
                1
            } else {
                inverse((r ^ c) as u8).expect("rows of parity are numbered behind columns")
            }
        })
    }
}

/// A coefficient in the forms that kernels use.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Coefficient {
    /// Products with 0..16.
    pub low: [u8; 16],
    /// Products with 0, 16, 32, ... 240.
    pub high: [u8; 16],
    /// Multiplication as an 8 by 8 matrix of bits, as `GF2P8AFFINEQB` takes it: the byte `7 - i`
    /// selects the bits of the factor that make bit `i` of the product.
    pub affine: u64,
    pub value: u8,
}

impl Coefficient {
    fn new(value: u8) -> Coefficient {
        let mut affine = 0;
        for bit in 0..8 {
            let product = mul(value, 1 << bit);
            for i in (0..8).filter(|i| product >> i & 1 != 0) {
                affine |= 1u64 << ((7 - i) * 8 + bit);
            }
        }
        Coefficient {
            low: std::array::from_fn(|i| mul(value, i as u8)),
            high: std::array::from_fn(|i| mul(value, (i << 4) as u8)),
            affine,
            value,
        }
    }
}

/// A matrix made ready for multiplication with data.
#[derive(Clone, Debug)]
pub struct Prepared {
    rows: usize,
    columns: usize,
    cells: Vec<Coefficient>,
}

impl Prepared {
    /// Makes a matrix ready.
    pub fn new(matrix: &Matrix) -> Prepared {
        Prepared {
            rows: matrix.rows,
            columns: matrix.columns,
            cells: matrix.cells.iter().map(|&v| Coefficient::new(v)).collect(),
        }
    }

    /// One row of one element.
    pub fn scalar(value: u8) -> Prepared {
        Prepared { rows: 1, columns: 1, cells: vec![Coefficient::new(value)] }
    }

    /// How many rows there are: outputs of a multiplication.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns there are: inputs of a multiplication.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The coefficients of some rows, one row after the other.
    pub(crate) fn cells(&self, rows: std::ops::Range<usize>) -> &[Coefficient] {
        &self.cells[rows.start * self.columns..rows.end * self.columns]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parity(g: &Matrix) -> Vec<Vec<u8>> {
        (g.columns()..g.rows()).map(|r| g.row(r).to_vec()).collect()
    }

    /// Read out of Debian's plugins 16.2.15: single bytes encoded, one data shard at a time.
    #[test]
    fn matrices_are_those_of_the_plugins() {
        let j = |k, m| parity(&Matrix::jerasure_reed_sol_van(k, m));
        assert_eq!(j(2, 2), [[1, 1], [1, 143]]);
        assert_eq!(j(4, 2), [[1, 1, 1, 1], [1, 70, 143, 200]]);
        assert_eq!(j(6, 2), [[1; 6], [1, 123, 245, 143, 244, 142]]);
        assert_eq!(
            j(8, 3),
            [[1; 8], [1, 55, 39, 73, 84, 181, 225, 217], [1, 172, 70, 235, 143, 34, 200, 101]]
        );
        let i = |k, m| parity(&Matrix::isa_reed_sol_van(k, m));
        assert_eq!(i(4, 2), [[1, 1, 1, 1], [1, 2, 4, 8]]);
        assert_eq!(i(6, 2), [[1; 6], [1, 2, 4, 8, 16, 32]]);
        let c = |k, m| parity(&Matrix::isa_cauchy(k, m));
        assert_eq!(c(4, 2), [[71, 167, 122, 186], [167, 71, 186, 122]]);
        assert_eq!(c(3, 1), [[1, 1, 1]]);
    }

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        for n in 1..12 {
            let m = Matrix::isa_cauchy(n, n).select(n..2 * n);
            if n == 1 {
                continue;
            }
            let identity = Matrix::from_fn(n, n, |r, c| u8::from(r == c));
            assert_eq!(m.product(&m.inverse().unwrap()), identity);
        }
        assert_eq!(Matrix::from_fn(2, 2, |_, c| c as u8).inverse(), None);
    }
}
