//! Who sees the flag sees the data: two WRITEs, one after the other. spec: IBA 9.5

/// Watches one flag and the data that it stands for.
#[derive(Debug, Default)]
pub struct Publication {
    seen: u64,
}

impl Publication {
    /// Looks at both. Each byte of the data is the version that it belongs to; a version is only
    /// ever followed by the next one.
    pub fn look(&mut self, flag: u64, data: impl FnOnce() -> Vec<u8>) -> Result<(), String> {
        if flag == self.seen {
            return Ok(());
        }
        if flag < self.seen || flag > u64::from(u8::MAX) {
            return Err(format!("the flag went from {} to {flag}", self.seen));
        }
        self.seen = flag;
        match data().iter().find(|&&version| u64::from(version) < flag) {
            Some(old) => Err(format!("the flag is {flag} and a byte of the data {old}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_before_its_data_shows() {
        let mut publication = Publication::default();
        assert_eq!(publication.look(0, || vec![0, 0]), Ok(()));
        assert_eq!(
            publication.look(1, || vec![1, 2]),
            Ok(()),
            "2 is on its way"
        );
        assert!(publication.look(2, || vec![2, 1]).is_err());
        assert!(publication.look(1, || vec![9, 9]).is_err(), "backwards");
    }
}
